"""The server behind the page: on this machine's loopback, one process, until Ctrl-C."""

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
_END_SECONDS = 1  # that answers under way may take after Ctrl-C


class ViewServer:
    """A page of runs and the socket it is served from. Use once: `serve`, in the main thread for Ctrl-C.

    Attributes:
        url: address of the page, with the secret that it asks for.
    """

    def __init__(self, path: Path, port: int = 0) -> None:
        """Finds runs under `path` and takes the port; 0 takes a free one.

        Raises:
            UserError: there is no run, or the port cannot be had.
        """
        runs = Runs(path)
        if not 0 <= port <= 65535:
            raise UserError(f"expected a --port from 0 (any that is free) to 65535, got {port}")
        try:
            self._socket = socket.create_server((_HOST, port))
        except OSError as error:
            raise UserError(
                f"port {port} of {_HOST} cannot be had ({error.strerror}): choose another --port, or 0 for any that is free"
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
            pass  # the server has ended in good order, and raises again what ended it
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Ends `serve`, from any thread."""
        self._server.should_exit = True


def open_browser(url: str) -> bool:
    """Shows the page in a browser, if this machine has a screen to show it on; whether it was tried."""
    has_screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(has_screen) and webbrowser.open(url)
