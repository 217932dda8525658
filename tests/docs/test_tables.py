"""The tables of the Markdown pages: each has a head with a rule below it, and as many cells in each row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in ("docs", "examples", "tests") for page in (ROOT / folder).rglob("*.md"))]
)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_whole(page: Path) -> None:
    assert damaged(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("rows", "bad"),
    [
        (["| a | b |", "|---|---|", "| 1 | 2 |", "", "| 3 | 4 |"], "| 3 | 4 |"),
        (["| a | b |", "|---|---|", "| 1 | 2"], "| 1 | 2"),
        (["| a | b |", "|---|---|", "| 1 2 |"], "| 1 2 |"),
    ],
    ids=["a blank line", "no end", "a cell too few"],
)
def test_a_damaged_table_is_found(rows: list[str], bad: str) -> None:
    assert damaged("\n".join(rows)) == [bad]


def test_an_escaped_bar_and_a_fenced_one_are_no_cells() -> None:
    assert damaged("| a |\n|---|\n| \\|x\\| |\n\n```\n| no table\n```") == []
