"""Pages that a benchmark writes say what the generator would write today."""

from __future__ import annotations

from pathlib import Path

from bench.convergence.__main__ import FULL
from bench.convergence.report import page
from bench.convergence.study import results_in
from bench.convergence.summaries import summaries_of

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_on_convergence_follows_from_its_runs() -> None:
    results = results_in(DOCS / "convergence", FULL)
    assert results
    assert (DOCS / "convergence" / "README.md").read_text() == page(FULL, results, summaries_of(FULL, results))
