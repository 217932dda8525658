"""Takes screenshots of the page of a real swarm for the README: light, dark, and in the width of a phone.

Needs Chromium (apt-get install -y chromium) and the packages that `make lint` installs.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from deploy.local_swarm.processes import Process, Processes

NAMES = ("ada-laptop", "garden-shed", "lab-3090", "mira", "old-thinkpad")
STEPS = 400
SHOWN_AT_STEP = 80
PATIENCE_S = 900.0
PICTURE_BYTES_MAX = 300_000
PICTURES = {  # name: (color scheme, width, height)
    "page-light": ("light", 1200, 1180),
    "page-dark": ("dark", 1200, 1180),
    "page-narrow": ("light", 390, 1180),
}


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not installed: apt-get install -y chromium")
    docs = Path("docs").absolute()
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder), len(NAMES)) as processes:
        run_file = Path(folder) / "run.toml"
        run_file.write_text(f'[model]\npreset = "byte-1m"\n[schedule]\nsteps = {STEPS}\n[round]\nsamples = 4\n')
        processes.start_coordinator(run_file)
        for name in NAMES:
            command = ["thinwire-node", "start", f"@{processes.invite_file}", "--name", name, "--threads", "1"]
            processes.all.append(
                Process(name, [*command, "--state-dir", f"{folder}/{name}"], Path(folder) / f"{name}.log")
            )
        with sync_playwright() as playwright:
            # Chromium's sandbox does not work as root; it opens only our own page
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, (scheme, width, height) in PICTURES.items():
                _take(browser, processes.page_url, docs / f"{name}.png", scheme, width, height)
            browser.close()


def _take(browser: Browser, address: str, path: Path, scheme: str, width: int, height: int) -> None:
    dark = scheme == "dark"
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(address)
    page.locator("#node-table tbody tr").nth(len(NAMES) - 1).wait_for(timeout=PATIENCE_S * 1000)
    deadline = time.monotonic() + PATIENCE_S
    while int(re.sub(r"\D", "", page.locator("#step").inner_text())) < SHOWN_AT_STEP:
        if time.monotonic() > deadline:
            sys.exit(f"the swarm did not reach step {SHOWN_AT_STEP} within {PATIENCE_S:.0f} s")
        time.sleep(0.5)
    some = re.compile(f"waiting for [1-{len(NAMES) - 1}] of")
    page.locator("#waits", has_text=some).wait_for(timeout=PATIENCE_S * 1000)
    page.screenshot(path=path, full_page=True)
    context.close()
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if size > PICTURE_BYTES_MAX:
        sys.exit(f"{path.name} is larger than {PICTURE_BYTES_MAX:,} bytes")


if __name__ == "__main__":
    main()
