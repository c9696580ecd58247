"""A real Chromium, driven by its own protocol over a pipe: no package is needed for it."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
"""Options by which it has no window, and asks nothing of a network."""
OPTIONS = (
    *(*QUIET, "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
    "--disable-features=IsolateSandboxedIframes",  # so that a frame can be asked, too
)
PATIENCE = 60.0
"""The most seconds that an answer of the browser takes on a busy machine."""
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35}
KEYS |= {"Escape": 27, " ": 32, "Enter": 13, "Tab": 9}


def chromium() -> str:
    """The path of a Chromium; the test is skipped where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    return found


class Browser:
    """A tab of a browser: pages are opened in it, and looked at."""

    def __init__(self, process: "subprocess.Popen[bytes]", read: int, write: int) -> None:
        self.process, self.read, self.write = process, read, write
        self.received = b""
        self.number = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        made = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = made["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    # ---------------------------------------------------------------- messages

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of the browser to a command of its protocol."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self._message()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)
        raise TimeoutError(f"{method}: the browser does not answer")

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self.received:
            more = os.read(self.read, 1 << 20)
            assert more, "the browser has ended"
            self.received += more
        text, _, self.received = self.received.partition(b"\0")
        return dict(json.loads(text))

    # ---------------------------------------------------------------- pages

    def open(self, url: str) -> None:
        """Opens a page, and waits until it is there."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def value_in_frame(self, expression: str) -> Any:
        """The value of an expression in the page's first frame."""
        tree = self.call("Page.getFrameTree")["frameTree"]
        frame = tree["childFrames"][0]["frame"]["id"]
        world = self.call("Page.createIsolatedWorld", frameId=frame)["executionContextId"]
        own = {"expression": expression, "contextId": world, "returnByValue": True}
        return self.call("Runtime.evaluate", **own)["result"].get("value")

    def wait(self, expression: str, *, in_frame: bool = False) -> None:
        """Waits until an expression is true."""
        value = self.value_in_frame if in_frame else self.value
        end = time.monotonic() + PATIENCE
        while not value(expression):
            assert time.monotonic() < end, f"it does not become true: {expression}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Clicks in the middle of an element."""
        where = (
            f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        x, y = self.value(where)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Presses a key."""
        code = KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            given = text if kind == "keyDown" else {}
            named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type=kind, **named, **given)

    def look(self, width: int = 1280, height: int = 800, *, dark: bool = False) -> None:
        """Sets the size of the window, and light or dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def offline(self) -> None:
        """Cuts the network off."""
        self.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )

    def screenshot(self, file: Path) -> None:
        """Writes what the window shows, in the form that the file's name ends in: .png or .webp."""
        form = {"format": "webp", "quality": 80} if file.suffix == ".webp" else {"format": "png"}
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **form)["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, and entries of the log, since the page was opened."""
        self.value("1")
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]


@contextmanager
def started_browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which is closed and removed at the end."""
    program = chromium()
    from_us, to_us = os.pipe(), os.pipe()
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads commands from file 3 and writes answers to file 4.
        script = f'exec "$0" "$@" 3<&{from_us[0]} 4>&{to_us[1]}'
        command = ["bash", "-c", script, program, f"--user-data-dir={profile}", *OPTIONS]
        process = subprocess.Popen(
            command,
            pass_fds=(from_us[0], to_us[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us[0])
        os.close(to_us[1])
        try:
            yield Browser(process, to_us[0], from_us[1])
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE)
            os.close(from_us[1])
            os.close(to_us[0])
