"""Pages that a benchmark writes say what the generator would write today."""

from __future__ import annotations

from pathlib import Path

from bench.convergence.plan import results_in
from bench.convergence.report import few_page, many_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_on_convergence_follow_from_their_runs() -> None:
    results = results_in(DOCS / "convergence")
    assert results
    assert (DOCS / "convergence" / "README.md").read_text() == few_page(results)
    assert (DOCS / "convergence" / "scaling.md").read_text() == many_page(results)
