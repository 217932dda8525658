"""The Markdown pages: every relative link, anchor and path resolves, and every table is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in ("docs", "tests") for page in (ROOT / folder).rglob("*.md"))])
HISTORY = {"CHANGELOG.md", "log"}
"""Pages and folders that name files as they were called at the time."""
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)|(?:src|href)=\"(?P<html>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"\.?[\w-]+(/[\w.*-]+)*/?")
FOLDERS = tuple(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and path.name not in ("runs", "build"))


def links(text: str) -> list[str]:
    found = [match["target"] or match["html"] for match in LINK.finditer(FENCE.sub("", text))]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The ids that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for match in HEADING.finditer(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match["text"]).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def broken(page: Path, text: str) -> list[str]:
    found = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        there = other == page or (other.exists() and other.is_relative_to(ROOT))
        if not there or (anchor and anchor not in anchors(text if other == page else other.read_text())):
            found.append(target)
    return found


def missing(text: str) -> list[str]:
    """Code spans that look like a path of the repository and are none."""
    spans = [span for span in CODE.findall(FENCE.sub("", text)) if PATH.fullmatch(span) and span.startswith(FOLDERS)]
    return [span for span in spans if not any(ROOT.glob(span.rstrip("/")))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    assert broken(page, page.read_text()) == []


@pytest.mark.parametrize("page", [page for page in PAGES if not HISTORY & set(page.parts)], ids=name_of)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


TABLE_PAGES = sorted([*PAGES, *(ROOT / "examples").rglob("*.md")])
RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+")
CELL_END = re.compile(r"(?<!\\)\|")


def damaged(text: str) -> list[str]:
    """The lines that no reader would show as a row of a table, though they begin like one."""
    found: list[str] = []
    table: list[str] = []
    fenced = False
    for line in [*text.splitlines(), ""]:
        row = line.strip()
        fenced ^= row.startswith("```")
        if row.startswith("|") and not fenced:
            table.append(row)
        elif table:
            found += _damaged_rows(table)
            table = []
    return found


def _damaged_rows(rows: list[str]) -> list[str]:
    if len(rows) < 2 or not RULE.fullmatch(rows[1]):
        return rows[:1]
    cells = len(CELL_END.findall(rows[0]))
    return [row for row in rows if len(CELL_END.findall(row)) != cells or not row.endswith("|")]


@pytest.mark.parametrize("page", TABLE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_whole(page: Path) -> None:
    assert damaged(page.read_text(encoding="utf-8")) == []
