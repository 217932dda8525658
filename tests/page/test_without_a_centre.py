"""Tests the page of a gossip run in Chromium, on real nodes that have trained to the end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from support.chromium import IN_CHROMIUM, serious
from support.real import ended, real_swarm, run_text, until, without_a_centre
from thinwire_coordinator.hall.ledger.results import Result, add_results

STEPS = 12
RUN = run_text(STEPS, length_ms=1000, rounds='pace = "clock"')
RUN += without_a_centre(2, 4, codec="int8")
pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_swarm(tmp_path_factory.mktemp("gossip-page")) as swarm:
        coordinator = swarm.coordinator(RUN, "--http", "127.0.0.1:0")
        nodes = [swarm.node(name) for name in ("one", "two")]
        for node in nodes:
            assert ended(node) == 0, node.tail(30)
        add_results(swarm.state, [Result(kind="task", name="sums", step=STEPS, metric="acc", value=0.5, stderr=0.1)])
        until(lambda: swarm.status().measured_step == STEPS, "the loss of the mean", coordinator)
        yield swarm.ready["page"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_the_page_shows_iterations_lines_and_agreement(browser: Browser, address: str, scheme: str, width: int) -> None:
    viewport: ViewportSize = {"width": width, "height": 900}
    context = browser.new_context(viewport=viewport, color_scheme="dark" if scheme == "dark" else "light")
    page: Page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.locator("#link[data-link=live]").wait_for()
    expect(page.locator("#dial")).to_have_text("beat")
    expect(page.locator("#step")).to_have_text(f"Iteration {STEPS}")
    expect(page.locator("#steps")).to_contain_text(f"all nodes at {STEPS}")
    expect(page.locator("#node-table thead th")).to_have_text(
        ["node", "state", "iteration", "loss", "tokens", "direct", "by relay", "an iteration", "peers, newest message"]
    )
    rows = page.locator("#node-table tbody tr")
    expect(rows).to_have_count(2)
    for row in rows.all():
        cells = row.locator("td").all_inner_texts()
        assert cells[1] == str(STEPS)
        assert (cells[4], cells[5][0] != "0") == ("0 B", True)  # all through the relay
    expect(page.locator("#agreement")).to_contain_text("Distance from the mean")
    expect(page.locator("#agreement")).to_contain_text(f"at iteration {STEPS}")
    expect(page.locator("#agreement")).to_contain_text("codec int8")
    expect(page.locator("#void-rounds")).to_be_hidden()
    plot = page.get_by_role("slider", name="sums, task")
    expect(plot).to_have_attribute("aria-valuetext", f"iteration {STEPS}: acc 0.500 ± 0.100")
    page.get_by_text("tokens", exact=True).first.click()
    expect(page.locator("#loss-chart")).to_contain_text("held out, single nodes; at the end, their mean")
    expect(page.locator("#loss-chart figcaption")).to_contain_text("training, median of the nodes")
    page.locator("#node-table th button", has_text=re.compile("^iteration$")).click()
    expect(page.locator("#node-table th[aria-sort=descending]")).to_have_text("iteration")
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    assert serious(page) == []
    assert errors == []
    context.close()
