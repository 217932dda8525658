"""Writes a page that is generated from the code, or checks that the committed one is up to date (`--check`)."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def write_or_check(name: str, text: str, module: str) -> None:
    """name: of the page in docs/. module: the command that makes it. Raises SystemExit if the page is stale."""
    page = DOCS / name
    if sys.argv[1:] != ["--check"]:
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        raise SystemExit(f"stale: docs/{name}; run `python -m {module}` and commit")
    else:
        print(f"docs/{name} is up to date")
