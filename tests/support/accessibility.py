"""The accessibility of a page in a browser, as axe finds it."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def serious(page: Page) -> list[str]:
    """Serious and critical accessibility violations that axe finds, with their elements."""
    found = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['target']}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
