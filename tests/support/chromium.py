"""The browser in which the page is tested, and the mark of such tests."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_MS = 60_000
IN_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install -y chromium")

expect.set_options(timeout=PATIENCE_MS)
