"""HTTP server of the page, on the loopback interface, until Ctrl-C."""

import os
import secrets
import socket
import sys
import webbrowser
from pathlib import Path

import uvicorn

from envpool_bridge.errors import UserError
from jaxsrl.web.app import make_app
from jaxsrl.web.runs import Runs

_HOST = "127.0.0.1"
_END_SECONDS = 1  # limit for pending responses after Ctrl-C


class ViewServer:
    """Page of runs and its listening socket. Call `serve` once, in the main thread for Ctrl-C.

    Args:
        path: directory of runs.
        port: port to bind; 0 for a free one.

    Attributes:
        url: address of the page, with its secret token.

    Raises:
        UserError: If there is no run, or the port cannot be bound.
    """

    def __init__(self, path: Path, port: int = 0) -> None:
        runs = Runs(path)
        if not 0 <= port <= 65535:
            raise UserError(f"expected a --port from 0 (a free one) to 65535, got {port}")
        try:
            self._socket = socket.create_server((_HOST, port))
        except OSError as error:
            raise UserError(
                f"cannot bind port {port} of {_HOST} ({error.strerror}): choose another --port, or 0 for a free one"
            ) from error
        token = secrets.token_urlsafe(16)
        self.url = f"http://{_HOST}:{self._socket.getsockname()[1]}/{token}/"
        config = uvicorn.Config(
            make_app(runs, token),
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_END_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def serve(self) -> None:
        """Answers until `stop` or Ctrl-C."""
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass  # the server has stopped cleanly and raises it again
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Stops `serve`, from any thread."""
        self._server.should_exit = True


def open_browser(url: str) -> bool:
    """Opens the page in a browser if this machine has a screen; returns whether it tried."""
    has_screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(has_screen) and webbrowser.open(url)
