"""Stores to report on, and a real headless Chromium, driven over a pipe with nothing but the standard library."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from padless import TokenStore, pack

PATIENCE = 60  # seconds, on a machine that is busy
KEY_CODES = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Home": 36,
    "End": 35,
    "PageUp": 33,
    "PageDown": 34,
    "Tab": 9,
}
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Browser:
    """One tab of a Chromium, with everything that it complained about or asked the network for."""

    def __init__(self, executable: str, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()

        def attach() -> None:  # Chromium reads commands from descriptor 3 and answers on 4
            low = os.dup(commands), os.dup(answers)
            os.dup2(low[0], 3)
            os.dup2(low[1], 4)

        self._process = subprocess.Popen(
            [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=attach,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._ids = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._from], [], [], PATIENCE)[0], f"Chromium said nothing for {PATIENCE} s"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium ended"
            self._unread += part
        line, self._unread = self._unread.split(b"\0", 1)
        heard = json.loads(line)
        method, said = heard.get("method"), heard.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(said["exceptionDetails"].get("exception", {}).get("description", str(said)))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{said['type']}: {said['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{said['entry']['level']}: {said['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {said['message']}")
        return heard

    def open(self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Load a file and wait until it is there; complaints and requests start from nothing."""
        self.complaints.clear()
        self.requests.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._loaded = False
        self.send("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._hear()
        self.settle()

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def settle(self) -> None:
        """Wait until what was changed is on the screen, where the mouse finds it."""
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of an element, as a person would."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{found}.scrollIntoView({{block: 'center'}})")
        self.settle()
        x, y = self.value(
            f"(() => {{ const element = {found}, box = element.getBoundingClientRect(); window.clicked = false; "
            "element.addEventListener('click', () => { window.clicked = true }, {once: true}); "
            "return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        deadline = time.monotonic() + PATIENCE
        while not self.value("window.clicked"):
            assert time.monotonic() < deadline, f"the click at {x}, {y} did not reach {selector}"

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEY_CODES[key]}
        self.send("Input.dispatchKeyEvent", type="rawKeyDown", **code)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def picture(self, path: Path) -> bytes:
        """A PNG of the whole page."""
        taken = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))
        return path.read_bytes()

    def close(self) -> None:
        """End this Chromium."""
        self._session = None
        self.send("Browser.close")
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of this room; skips, and says what is missing, where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next((found for name in names if (found := shutil.which(name))), None)
    if executable is None:
        pytest.skip("no chromium here: `apt-get install chromium` for the tests of the page in a browser")
    browser = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser, and at the end of the test the certainty that no page complained or asked for anything."""
    chromium.complaints.clear()
    yield chromium
    chromium.value("1")  # hear what is still on its way
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith(("file:", "about:"))] == []


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., TokenStore]:
    """Pack records (dicts) as bytes, one row of the plan after the other in order."""

    def make(records: list[dict[str, str]], capacity: int = 64, **settings: Any) -> TokenStore:
        source = tmp_path / "data.jsonl"
        source.write_text("".join(json.dumps(record) + "\n" for record in records))
        settings = {"tokenizer": "bytes", **settings}
        pack(source, capacity=capacity, output=tmp_path / "store", **settings)
        return TokenStore(tmp_path / "store")

    return make


@pytest.fixture
def store(make_store: Callable[..., TokenStore]) -> TokenStore:
    """Questions and answers of many lengths in rows of 64."""
    records = [{"prompt": f"{n} + {n} = ", "completion": str(2 * n) + "!" * (n % 23)} for n in range(40)]
    return make_store(records, align=4)
