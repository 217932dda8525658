"""The browser in which the page is tested, the mark of such tests, and what axe finds on a page."""

from __future__ import annotations

import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_MS = 60_000
IN_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install -y chromium")

expect.set_options(timeout=PATIENCE_MS)


def runs_injected_scripts(page: Page) -> bool:
    """Whether the page would run a script that markup of a stranger brought."""
    return bool(
        page.evaluate(
            """() => {
                const script = document.createElement("script")
                script.textContent = "window.injected = true"
                document.body.append(script)
                return window.injected
            }"""
        )
    )


def serious(page: Page) -> list[str]:
    """Serious and critical accessibility violations that axe finds, with their elements."""
    found = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['target']}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
