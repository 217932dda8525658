"""A coordinator with a crowd of members, and its page in a browser, on a line that can fail."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

from support.chromium import PATIENCE_MS
from support.cutting_proxy import cutting_proxy
from support.real import RealSwarm, ended, run_text, until

MEMBERS = 200
NAME = "<img src=x onerror=alert(1)>"


class CrowdedCoordinator:
    """A coordinator with its page and a crowd of light members."""

    def __init__(self, swarm: RealSwarm) -> None:
        self.swarm = swarm
        run = run_text(100_000, length_ms=2000, rounds='min_contributions = 1\npace = "clock"')
        self.coordinator = swarm.coordinator(run, "--http", "127.0.0.1:0")
        self.address = swarm.ready["page"]
        crowd = [
            "python",
            "-m",
            "bench.speed.light_members",
            swarm.invitation,
            "--members",
            str(MEMBERS),
            "--name",
            NAME,
        ]
        self.crowd = swarm.start("crowd", *crowd)
        until(lambda: self.active == MEMBERS, "all members are active", self.crowd, progress=lambda: self.active)
        until(lambda: self.status()["step"] >= 2, "some steps", self.crowd)

    def status(self) -> dict[str, Any]:
        with urlopen(f"{self.address}/api/status?nodes=0", timeout=10) as answer:
            return dict(json.load(answer))

    @property
    def active(self) -> int:
        return int(self.status()["nodes"]["active"])

    def start_again(self) -> None:
        """The killed coordinator may still hold its state directory for a moment."""
        ended(self.coordinator)
        self.coordinator = self.swarm.coordinator(None, "--http", self.address.removeprefix("http://"))


class Open:
    """An open page, with its errors and its requests. A dialog counts as an error, because only markup in a node's name
    could open one."""

    def __init__(self, browser: Browser, address: str, *, dark: bool = False, width: int = 1200) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.locator("#link[data-link=live]").wait_for()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog {dialog.message}")
        dialog.dismiss()

    @property
    def step(self) -> int:
        return int(re.sub(r"\D", "", self.page.locator("#step").inner_text()))


class Line:
    """The line between a browser and the coordinator, which can fail. Runs on a thread, beside Playwright's loop."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._made = cutting_proxy(address, same_port=True)
        self._proxy = asyncio.run_coroutine_threadsafe(self._made.__aenter__(), self._loop).result()
        self.address = f"http://{self._proxy.address}"

    def shut(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.shut)

    def open(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.open)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._made.__aexit__(None, None, None), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
