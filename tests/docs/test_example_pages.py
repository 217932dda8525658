"""The pages of the examples show the figures that the runs wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.running.figures import CURVE, PAGE, read_figures, with_figures

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = sorted(path.parent for path in EXAMPLES.glob("*/run.toml"))


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_a_page_shows_the_figures_of_its_run(folder: Path) -> None:
    figures, page = read_figures(folder), (folder / PAGE).read_text()
    assert page == with_figures(page, figures)
    assert (folder / CURVE).stat().st_size > 0
    assert figures.steps == 200
    assert all(curve[-1][1] < curve[0][1] for curve in figures.losses.values())
