"""A headless Chromium, Debian's, by its DevTools protocol: pages are opened, clicked and read as a person sees them."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.servers.patience import PATIENCE_S, until

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--window-size=1600,1200",
)


_LEFT = ("Inspected target navigated or closed", "Cannot find context", "Execution context was destroyed")
"""What a browser answers for JavaScript of a page that is being left."""


class PageLeft(AssertionError):
    """The page was left before it answered; the next one can be asked."""


class Page:
    """One tab. problems: errors that the console showed and exceptions that nobody caught, with their place."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer; events that come before it are looked at."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if message.get("id") == self._number:
                error = message.get("error", {})
                if error.get("message", "").startswith(_LEFT):
                    raise PageLeft(method, error)
                assert not error, (method, error)
                answer: dict[str, Any] = message["result"]
                return answer
            self._hear(message)

    def value_of(self, expression: str) -> Any:
        """What JavaScript says. Raises: PageLeft, AssertionError for what it throws."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, url: str, *shown: str) -> float:
        """Go there as a new visit; seconds until the page shows all of these texts."""
        start = time.monotonic()
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=url)
        self.wait_for(*shown)
        return time.monotonic() - start

    def text(self) -> str:
        """What is rendered, as a selection of the whole page would copy it."""
        found: str = self.value_of("document.body ? document.body.innerText : ''")
        return found

    def wait_for(self, *shown: str) -> None:
        """Until the page shows all of these texts. Raises: AssertionError, with what it shows instead."""

        def missing() -> list[str]:
            text = self.text()
            return [one for one in shown if one not in text]

        self.wait_until(f"the page shows {shown}", lambda: not missing())

    def click(self, text: str) -> None:
        """Click, by the mouse, the smallest visible thing whose whole text this is."""
        place = f"""(() => {{
            const found = [...document.querySelectorAll('a, button, [role=tab], div, span')].filter(
                (one) => one.innerText === {json.dumps(text)} && one.getClientRects().length);
            const last = found.sort((a, b) => b.contains(a) ? 1 : a.contains(b) ? -1 : 0).at(-1);
            if (!last) return null;
            last.scrollIntoView({{block: 'center'}});
            const box = last.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        seen: list[Any] = [None]

        def stands_still() -> bool:
            seen.append(self.value_of(place))
            return bool(seen[-1]) and seen[-1] == seen[-2]

        self.wait_until(f"{text!r} stands still to be clicked", stands_still)
        x, y = seen[-1]
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def show_theme(self, theme: str) -> None:
        """Prefer a colour scheme, "light" or "dark", from now on."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def resize(self, width: int, height: int) -> None:
        """Change the window's size, until `Emulation.clearDeviceMetricsOverride`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def screenshot(self, path: Path) -> None:
        """The window, as PNG."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def wait_until(self, what: str, is_so: Callable[[], Any]) -> None:
        """Raises: AssertionError, with what the page shows instead. While a page is being left, it is not so."""

        def is_so_now() -> Any:
            try:
                return is_so()
            except PageLeft:
                return False

        until(is_so_now, lambda: f"{what}\n{self.text()}")

    def _hear(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        if message["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
            said = [str(one.get("value", one.get("description", ""))) for one in params["args"]]
            self.problems.append(" ".join(said))
        if message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A browser with a new profile in this folder; it ends with the block."""
    program = shutil.which("chromium")
    assert program is not None, "there is no chromium: run scripts/install-servers.sh"
    log = profile.with_name(f"{profile.name}.log")
    with log.open("wb") as out:
        process = subprocess.Popen([program, *_FLAGS, f"--user-data-dir={profile}"], stdout=out, stderr=out)
    try:
        # Nothing reads between two commands: events may pile up for minutes, and the browser is here or has ended.
        unread: dict[str, Any] = {"max_size": None, "max_queue": None, "ping_interval": None}
        with connect(_page_address(profile, process, log), **unread) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _page_address(profile: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    """Of its first tab, once it listens."""
    ports, deadline = profile / "DevToolsActivePort", time.monotonic() + PATIENCE_S
    while not (ports.exists() and ports.read_text().count("\n")):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    port = ports.read_text().splitlines()[0]
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE_S) as answer:
            for target in json.load(answer):
                if target["type"] == "page":
                    address: str = target["webSocketDebuggerUrl"]
                    return address
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
