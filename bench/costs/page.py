"""Measures the cost of the page: its processor time for watching and serving, as a share of the coordinator's.

    python -m bench.costs.page --seconds 60

The coordinator runs in this process, and three nodes run in their own processes. The first measurement is without a
browser, the second with one Chromium. Callbacks on the event loop are timed with the thread's clock, and count for the
page if they belong to its routes, its stream or the HTTP server. The sample is timed on its worker thread.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright

from deploy.local_swarm.processes import Process
from thinwire_common.ready_file import READY_FILE
from thinwire_coordinator import evaluation
from thinwire_coordinator.coordinator import Coordinator
from thinwire_coordinator.hall.observe.history import History
from thinwire_coordinator.hall.web.live import Live
from thinwire_coordinator.hall.web.page import Page
from thinwire_coordinator.settings import CoordinatorSettings
from thinwire_proto.contract import RunSpec, ScheduleSpec
from thinwire_proto.models import PRESETS

NODES = 3
OURS = re.compile(r"uvicorn|starlette|thinwire_coordinator[./](page|web|history)")


class Cost:
    """Seconds of processor time by kind of work."""

    def __init__(self) -> None:
        self.taken = {"watching": 0.0, "serving": 0.0, "samples": 0.0}

    def time(self, of: Any, name: str, what: str) -> None:
        """Replace a function with a timed one."""
        plain: Callable[..., Any] = getattr(of, name)

        def timed(*arguments: Any, **more: Any) -> Any:
            began = time.thread_time()
            try:
                return plain(*arguments, **more)
            finally:
                self.taken[what] += time.thread_time() - began

        setattr(of, name, timed)

    def time_handles(self) -> None:
        """Time all callbacks that the event loop runs for the HTTP server."""
        plain = asyncio.Handle._run

        def run(handle: Any) -> Any:
            if not OURS.search(_owner(handle._callback)):
                return plain(handle)
            began = time.thread_time()
            try:
                return plain(handle)
            finally:
                self.taken["serving"] += time.thread_time() - began

        setattr(asyncio.Handle, "_run", run)  # noqa: B010 - as mypy sees it, a method cannot be replaced


def _owner(callback: Any) -> str:
    """The owner of a callback: the file of a task's coroutine, or the module of a transport's protocol."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        code = getattr(owner.get_coro(), "cr_code", None)
        return code.co_filename if code else ""
    protocol = getattr(owner, "_protocol", owner)
    return f"{type(protocol).__module__}"


async def _measure(seconds: float, folder: Path) -> None:
    cost = Cost()
    cost.time(History, "watch", "watching")
    cost.time(Page, "_know_name", "watching")
    cost.time(Live, "wake", "watching")
    cost.time(evaluation.HeldOut, "sample", "samples")
    cost.time_handles()
    run = RunSpec(model=PRESETS["byte-1m"], schedule=ScheduleSpec(steps=1_000_000))
    settings = CoordinatorSettings(
        folder / "state",
        "127.0.0.1:7790",
        run,
        wait_for=NODES,
        evaluate_every=20,
        http="127.0.0.1:7791",
        invite_file=folder / "invite",
    )
    stop = asyncio.Event()
    coordinator = asyncio.ensure_future(Coordinator(settings).run(stop))
    nodes = []
    await _until_ready(coordinator, folder / "state" / READY_FILE)
    for number in range(1, NODES + 1):
        command = ["thinwire-node", "start", f"@{folder}/invite", "--name", f"node-{number}", "--threads", "1"]
        nodes.append(Process("node", [*command, "--state-dir", f"{folder}/{number}"], folder / f"{number}.log"))
    try:
        async with async_playwright() as playwright:
            path = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = await browser.new_page()
            await page.goto("http://127.0.0.1:7791/")
            await page.locator("#step", has_text=re.compile("Step [1-9]")).wait_for(timeout=120_000)
            await page.close()
            await _report("no browser", seconds, cost)
            page = await browser.new_page()
            await page.goto("http://127.0.0.1:7791/")
            await page.locator("#link[data-link=live]").wait_for()
            await _report("one browser", seconds, cost)
            await browser.close()
    finally:
        for node in nodes:
            node.end(8)
        stop.set()
        await coordinator


async def _until_ready(coordinator: asyncio.Future[None], ready: Path) -> None:
    while not ready.exists():  # noqa: ASYNC240 - it takes microseconds
        if coordinator.done():
            coordinator.result()
        await asyncio.sleep(0.2)


async def _report(title: str, seconds: float, cost: Cost) -> None:
    before, process = dict(cost.taken), time.process_time()
    await asyncio.sleep(seconds)
    whole = time.process_time() - process
    taken = {what: cost.taken[what] - before[what] for what in before}
    print(f"{title}, {seconds:.0f} s: the process took {whole:.2f} s")
    for what, spent in [*taken.items(), ("total", sum(taken.values()))]:
        print(f"  {what:9} {1000 * spent:8.1f} ms  {100 * spent / whole:.3f} %")


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.costs.page", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each of the two measurements")
    arguments = parser.parse_args()
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        sys.exit("Chromium is not installed: apt-get install -y chromium")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(arguments.seconds, Path(folder)))


if __name__ == "__main__":
    main()
