"""A real headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WAIT_S = 60.0


class Browser:
    """One page. ``asked_elsewhere``: addresses of other hosts it asked for; ``complaints``: errors of its console."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse, url: str):
        self._loop, self._socket, self._number = loop, socket, 0
        self._own = urlsplit(url).netloc
        self.asked_elsewhere: list[str] = []
        self.complaints: list[str] = []

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to, as JSON."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait for a JavaScript condition."""
        end_s = time.monotonic() + WAIT_S
        while not self.value(condition):
            assert time.monotonic() < end_s, f"never true: {condition}"
            time.sleep(0.05)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._loop.run_until_complete(self._call(method, parameters))

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            told = json.loads((await self._socket.receive(WAIT_S)).data)
            if told.get("id") == self._number:
                assert "error" not in told, told["error"]
                return told["result"]
            self._note(told)

    def _note(self, event: dict[str, Any]) -> None:
        kind, what = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent":
            url = urlsplit(what["request"]["url"])
            if url.scheme != "data" and url.netloc != self._own:
                self.asked_elsewhere.append(what["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.complaints.append(str(what["exceptionDetails"]))
        elif kind == "Log.entryAdded" and what["entry"]["level"] == "error" and what["entry"]["source"] != "network":
            self.complaints.append(what["entry"]["text"])


@contextmanager
def browser_at(url: str) -> Iterator[Browser]:
    """A page at ``url``. Skips the test where there is no Chromium."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        # Without its sandbox it runs as root, as in a container; nothing but the page under test is ever opened.
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--window-size=1300,1000",
                   f"--user-data-dir={home}", "--remote-debugging-port=0", "about:blank"]  # fmt: skip
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=environment)  # fmt: skip
        loop = asyncio.new_event_loop()
        try:
            port = _port(Path(home) / "DevToolsActivePort", process)
            session, socket = loop.run_until_complete(_connect(port))
            try:
                browser = Browser(loop, socket, url)
                for domain in ("Network", "Runtime", "Log", "Page"):
                    browser.call(f"{domain}.enable")
                browser.call("Page.navigate", url=url)
                browser.until("document.readyState === 'complete' && location.href !== 'about:blank'")
                yield browser
            finally:
                loop.run_until_complete(session.close())
        finally:
            process.kill()
            process.wait()
            loop.close()


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end_s = time.monotonic() + WAIT_S
    while not (file.exists() and file.read_text().strip()):
        assert process.poll() is None, "the browser ended by itself"
        assert time.monotonic() < end_s, "the browser does not start"
        time.sleep(0.05)
    return int(file.read_text().split()[0])


async def _connect(port: int) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
        pages = [target for target in await response.json() if target["type"] == "page"]
    return session, await session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
