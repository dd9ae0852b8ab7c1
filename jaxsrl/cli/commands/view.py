"""`jaxsrl view`."""

import dataclasses
from pathlib import Path

import tyro


@dataclasses.dataclass(frozen=True)
class View:
    """Show runs as a web page on this machine, live while they train. Stop with Ctrl-C.

    Attributes:
        path: run directory, or a directory of runs.
        port: Port of the page's address; 0 for any free port.
        browser: also open the page in a browser, if this machine has a screen.
    """

    path: tyro.conf.Positional[Path] = Path("runs")
    port: int = 0
    browser: bool = True

    def run(self) -> int:
        """Serves the page until Ctrl-C."""
        from jaxsrl.web.server import ViewServer, open_browser

        server = ViewServer(self.path, self.port)
        print(f"{self.path} is shown at {server.url}\nCtrl-C ends this", flush=True)  # noqa: T201
        if self.browser:
            open_browser(server.url)
        server.serve()
        return 0
