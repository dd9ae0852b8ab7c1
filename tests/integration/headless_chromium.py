"""A Chromium without a window, told what to do over its DevTools protocol. For tests of the web page and for its pictures."""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = ANSWER_SECONDS = 150.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless=new --remote-debugging-port=0 --no-first-run --no-default-browser-check --disable-gpu --disable-extensions "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars --mute-audio --no-sandbox "
    "--disable-dev-shm-usage --force-color-profile=srgb --autoplay-policy=no-user-gesture-required"
)


def find_chromium() -> str | None:
    """The program, if there is one on this machine."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. Single-threaded.

    Attributes:
        problems: what its console and its network complained about.
    """

    def __init__(self, socket: Any, session: str, width: int, height: int, theme: str, mobile: bool) -> None:
        self._socket, self._session = socket, session
        self._ids = itertools.count(1)
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        number = next(self._ids)
        message = {"id": number, "sessionId": self._session, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = json.loads(self._socket.recv(timeout=max(0.1, deadline - time.monotonic())))
            self._note(answer)
            if answer.get("id") == number and answer.get("sessionId") == self._session:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.problems.append(str([one.get("value") for one in parameters["args"]]))

    def open(self, url: str) -> None:
        """Goes there."""
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 15.0) -> Any:
        """The value of an expression once it is true.

        Raises:
            TimeoutError: it did not become so; says what the page shows.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = self.js(f"(() => {{ try {{ return {condition}; }} catch {{ return false; }} }})()")
            if value not in (None, False, 0, ""):  # an element is {} here
                return value
            time.sleep(0.05)
        shown = self.js("document.body.innerText")
        raise TimeoutError(
            f"{condition} is not so after {seconds} s; problems {self.problems}; the page says:\n{shown}"
        )

    def move(self, x: float, y: float, kind: str = "mouseMoved") -> None:
        """The mouse: moved, "mousePressed" or "mouseReleased" there, in CSS pixels."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        held = {"buttons": 1} if kind == "mousePressed" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button, **held)

    def press(self, key: str) -> None:
        """A key by its name: "Tab", "ArrowRight", "Enter"."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}.get(key, 0)
        named: dict[str, Any] = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """A picture of the window, or of the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


class Chromium:
    """A running browser; `open_page` as often as wanted."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def open_page(self, width: int = 1280, height: int = 800, theme: str = "light", mobile: bool = False) -> Page:
        """A new tab with a window of this size, in CSS pixels, under a "light" or "dark" system."""
        target = self._browser("Target.createTarget", url="about:blank")["targetId"]
        session = self._browser("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self._socket, session, width, height, theme, mobile)

    def _browser(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._socket.send(json.dumps({"id": -1, "method": method, "params": parameters}))
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = json.loads(self._socket.recv(timeout=max(0.1, deadline - time.monotonic())))
            if answer.get("id") == -1:
                return answer["result"]


@contextmanager
def chromium(program: str) -> Iterator[Chromium]:
    """Starts the browser with a profile of its own, and ends it."""
    from websockets.sync.client import connect

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *_FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(_address(Path(profile), process), max_size=None, open_timeout=START_SECONDS) as socket:
                yield Chromium(socket)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


def _address(profile: Path, process: "subprocess.Popen[bytes]") -> str:
    told, deadline = profile / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"chromium ended with status {process.returncode} before it answered")
        if told.exists() and len(lines := told.read_text().splitlines()) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise TimeoutError(f"chromium did not answer within {START_SECONDS} s")
