"""A real browser (chromium) over its debugging pipe, for tests of pages; no driver and no package is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)

START = """import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, end in zip((3, 4), ends):  # where chromium expects the pipe
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""

# Moves the page's slider, with its number of a step to be filled in.
SLIDE = "(() => {{ const s = document.getElementById('step'); s.value = {}; s.dispatchEvent(new Event('input')); }})()"
MIDDLE = """(() => {
  const node = document.querySelector(%s);
  node.scrollIntoView({block: "center", behavior: "instant"});
  const box = node.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})()"""


class Browser:
    """Chromium, spoken to through a pipe: numbered JSON messages that end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        words = [sys.executable, "-c", START, str(to_read), str(to_write), CHROMIUM or "", *options]
        self.process = subprocess.Popen(
            [*words, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self.session = b"", 0, None
        self.events: list[dict] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: object) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._in, 1 << 20)
                assert more, "the browser has ended"
                self._rest += more
            text, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def run(self, script: str) -> object:
        result = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, page: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=page.as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def wait(self, script: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def press(self, key: str, shift: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": " "} if key == " " and kind == "keyDown" else {}
            code = "Space" if key == " " else key
            self("Input.dispatchKeyEvent", type=kind, key=key, code=code, modifiers=8 if shift else 0, **text)

    def mouse(self, selector: str, click: bool = False) -> None:
        x, y = self.run(MIDDLE % json.dumps(selector))  # type: ignore[misc]
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left" if click else "none",
                clickCount=int(click),
            )

    def problems(self) -> list[str]:
        """Console messages, exceptions, and requests for anything but the page and what it holds itself."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                found.append(json.dumps(params))
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
                ("data:", "file:", "about:")
            ):
                found.append(params["request"]["url"])
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._in)
        os.close(self._out)
