"""Access control of the page: requests from this machine, with the address that the command printed."""

import re
import secrets

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Rejects foreign names that resolve to 127.0.0.1 (DNS rebinding). The port may differ because of ssh -L.
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LocalOnly:
    """ASGI middleware that accepts GET requests for `/TOKEN/...` addressed to this machine, and adds the headers above.

    It accepts POST of JSON from the page itself. Browsers send the page's own origin with it, and ask before they send JSON
    from another site; such questions are not answered.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 403 with advice."""
        if scope["type"] != "http":
            return
        problem = self._problem(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if problem:
            await PlainTextResponse(problem + "\n", 403)(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _problem(self, scope: Scope) -> str:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not _LOCAL.fullmatch(hosts[0].decode("latin-1").lower()):
            return "expected the host localhost or 127.0.0.1: open the address that `jaxsrl view` printed"
        if scope["method"] == "POST":
            if not _is_from_page(scope, hosts[0]):
                return "expected POST of JSON from the page itself: open the address that `jaxsrl view` printed"
        elif scope["method"] not in ("GET", "HEAD"):
            return "expected GET, or POST of a request to a run"
        first = scope["path"].lstrip("/").partition("/")[0]
        if not secrets.compare_digest(first.encode(), self._token.encode()):
            return "expected an address with this server's token: open the one that `jaxsrl view` printed"
        return ""


def _is_from_page(scope: Scope, host: bytes) -> bool:
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    sites = [value for name, value in scope["headers"] if name == b"sec-fetch-site"]
    return origins == [b"http://" + host] and kinds == [b"application/json"] and sites in ([], [b"same-origin"])
