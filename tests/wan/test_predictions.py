"""The planner beside measured cells: read from results and from the page, and near what was measured."""

from __future__ import annotations

from pathlib import Path

from bench.wide_area.figures import CellResult, SystemFigures
from bench.wide_area.hosts import LinkSpec
from bench.wide_area.predictions import WITHIN, ComparedTime, compare, from_page, section
from bench.wide_area.report import page

WAN = Path(__file__).parents[2] / "docs" / "wan.md"
PLANNER = WAN.with_name("planner.md")
NAMES = {"X": "X, an all-reduce", "DDP": "a step of DDP", "star": "a round of the star"}
"""Of what is compared, on the planner's page."""


def figures(tokens: int) -> SystemFigures:
    """Four nodes, 100 exchanges in 100 s by the machine's clock."""
    return SystemFigures(4, 100.0, tokens, 100, 400, 90.0, 4_000_000, 8_000_000, 10.0)


def cell_result(dilation: float = 1.0) -> CellResult:
    tokens = figures(800_000), figures(600_000), figures(60_000)
    return CellResult(LinkSpec(10, 100, 0.0), *tokens, ddp_exchange_s=5.0, cores=2, dilation=dilation)


def test_a_page_that_is_made_has_the_section_that_its_cells_give() -> None:
    text = page([cell_result()], [], "")
    assert section(from_page(text)) in text


def test_nine_of_ten_measured_steps_of_ddp_are_predicted() -> None:
    """As many as the planner promises of all that it predicts."""
    cells = from_page(WAN.read_text(encoding="utf-8"))
    compared = [one for one in compare(cells) if one.what == "DDP"]
    assert len(compared) == len(cells) >= 8
    assert len([one for one in compared if abs(one.error) <= WITHIN]) >= 0.9 * len(compared)


def test_the_page_has_the_section_that_its_cells_give() -> None:
    text = WAN.read_text(encoding="utf-8")
    assert section(from_page(text)) in text


def summary(name: str, compared: list[ComparedTime]) -> str:
    """A row of the planner's page."""
    worst = max(compared, key=lambda one: abs(one.error))
    link, error = worst.cell.link, f"{worst.error:+.0%}".replace("-", "−")
    lost = f", {100 * link.loss:g}% lost" if link.loss else ""
    within = sum(abs(one.error) <= WITHIN for one in compared)
    where = f"{link.rate_mbit:g} Mbit/s, {link.round_trip_ms:g} ms{lost}"
    return f"| {name} | {within} of {len(compared)} | {error}: {where} |"


def test_the_page_of_the_planner_sums_up_the_same_cells() -> None:
    compared = compare(from_page(WAN.read_text(encoding="utf-8")))
    text = PLANNER.read_text(encoding="utf-8")
    for what, name in NAMES.items():
        assert summary(name, [one for one in compared if one.what == what]) in text
    within = sum(abs(one.error) <= WITHIN for one in compared)
    assert f"{within} of {len(compared)} times are within {WITHIN:.0%}" in text
