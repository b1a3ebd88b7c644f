"""A real browser for the report: headless Chromium, asked over the pipe of its DevTools protocol.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import select
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Under which Jenkins serves artifacts: DEFAULT_CSP_VALUE of its DirectoryBrowserSupport.
POLICY = "sandbox allow-same-origin; default-src 'none'; img-src 'self'; style-src 'self';"
_FLAGS = ("--headless", "--no-sandbox", "--hide-scrollbars", "--remote-debugging-pipe")
_DEADLINE_S = 600.0  # tests of one process run where nobody else wants the core
_HEIGHT = 900  # of a window, in pixels
_THEIRS = 3, 4  # the descriptors at which the browser reads what it is asked, and writes what it answers


class _Handler(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve the files of a directory on loopback as Jenkins would; gives the address."""
    handler = functools.partial(_Handler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@dataclass
class Browser:
    """One page of one browser. `said` is what it reported since the page was opened, without being asked."""

    requests: int
    answers: int
    session: dict[str, str] = field(default_factory=dict)
    said: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    rest: bytes = b""

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol."""
        self.asked += 1
        message = {"id": self.asked, "method": method, "params": parameters, **self.session}
        os.write(self.requests, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self.asked:
            self.said.append(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.answers], [], [], _DEADLINE_S)[0], "the browser does not answer"
            more = os.read(self.answers, 1 << 20)
            assert more, "the browser ended"
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, address: str) -> None:
        """Go there, and wait until all that the page names is loaded or refused."""
        self.said.clear()
        self.call("Page.navigate", url=address)
        while not any(one.get("method") == "Page.loadEventFired" for one in self.said):
            self.said.append(self._read())

    def show(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Show the page so many pixels wide, light or dark, on a screen or on paper."""
        window = {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **window)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript. The page itself may run none."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def refused(self) -> list[str]:
        """What the policy did not let the page do."""
        entries = [one["params"]["entry"] for one in self.said if one.get("method") == "Log.entryAdded"]
        return [entry["text"] for entry in entries if entry["source"] == "security"]


def _above(descriptors: tuple[int, int]) -> list[int]:
    """The same pipe at higher numbers, out of the way of those that the browser is to have."""
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, max(_THEIRS) + 1) for one in descriptors]
    for one in descriptors:
        os.close(one)
    return moved


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty page; it keeps its files in `profile`."""
    program = shutil.which("chromium")
    assert program, "no chromium, without which nobody looks at the report: apt-get install chromium"
    (asked, requests), (answers, answered) = _above(os.pipe()), _above(os.pipe())
    command = [program, *_FLAGS, f"--user-data-dir={profile}"]
    actions = [(os.POSIX_SPAWN_DUP2, *pair) for pair in zip((asked, answered), _THEIRS, strict=True)]
    log = os.POSIX_SPAWN_OPEN, 2, str(profile / "log.txt"), os.O_CREAT | os.O_WRONLY, 0o600
    process = os.posix_spawn(program, command, os.environ, file_actions=[*actions, log], setpgroup=0)
    try:
        os.close(asked)
        os.close(answered)
        browser = Browser(requests, answers)
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        browser.session = {"sessionId": attached["sessionId"]}
        browser.call("Page.enable")
        browser.call("Log.enable")
        yield browser
    finally:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(requests)
        os.close(answers)
