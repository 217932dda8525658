"""Pages that a benchmark writes say what the generator would write today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.convergence.__main__ import FULL
from bench.convergence.plan import results_in
from bench.convergence.report import page, scaling_page
from bench.wide_area import report as wide_area

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_on_convergence_follow_from_their_runs() -> None:
    results = results_in(DOCS / "convergence", FULL)
    assert results
    assert (DOCS / "convergence" / "README.md").read_text() == page(FULL, results)
    assert (DOCS / "convergence" / "scaling.md").read_text() == scaling_page(DOCS / "convergence")


@pytest.mark.parametrize("name", [wide_area.PAGE, "wan-long-rounds"])
def test_a_page_on_links_has_the_headings_and_titles_of_its_generator(name: str) -> None:
    """Its cells are not kept, so only what does not depend on them can be compared."""
    shown = (DOCS / f"{name}.md").read_text()
    fixed = [line for line in wide_area.page([], [], "").splitlines() if re.match(r"#|\|", line)]
    assert len(fixed) > 8
    assert [line for line in fixed if line not in shown.splitlines()] == []
