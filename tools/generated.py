"""Writes a page that is generated from the code, or checks that the committed one is up to date (`--check`)."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def with_parts(name: str, module: str, parts: dict[str, str]) -> str:
    """The text of a page of docs/, with each part between its markers replaced. Raises SystemExit if the page lacks the
    markers of one."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for part, made in parts.items():
        begin, end = f"<!-- {part}: begin; made by python -m {module} -->\n", f"<!-- {part}: end -->\n"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"docs/{name} lacks the markers of its {part}: {begin.strip()} … {end.strip()}")
        text = f"{before}{begin}\n{made}\n{end}{after}"
    return text


def write_or_check(name: str, text: str, module: str) -> None:
    """name: of the page in docs/. module: the command that makes it. Raises SystemExit if the page is stale."""
    page = DOCS / name
    if sys.argv[1:] != ["--check"]:
        page.write_text(text, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        raise SystemExit(f"stale: docs/{name}; run `python -m {module}` and commit")
    else:
        print(f"docs/{name} is up to date")
