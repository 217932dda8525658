"""Tests the page in Chromium, on a coordinator with 200 members whose names contain markup.

The tests that one worker runs share a swarm and a browser. The last browser test restarts the coordinator.
"""

from __future__ import annotations

import csv
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from support.chromium import IN_CHROMIUM, runs_injected_scripts, serious
from support.crowded_page import MEMBERS, NAME, CrowdedCoordinator, Line, Open
from support.real import real_swarm, until
from thinwire_coordinator.hall.ledger.results import FILE, Result, add_results
from thinwire_coordinator.hall.ledger.state_directory import open_state

DETAILS_BYTES_MAX = 16_000
MESSAGE_BYTES_MAX = 2_000

pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrowdedCoordinator]:
    with real_swarm(tmp_path_factory.mktemp("page")) as swarm:
        yield CrowdedCoordinator(swarm)


@pytest.fixture
def line(watched: CrowdedCoordinator) -> Iterator[Line]:
    line = Line(watched.address)
    yield line
    line.close()


@pytest.fixture(scope="module")
def light(watched: CrowdedCoordinator, browser: Browser) -> Open:
    return Open(browser, watched.address)


def test_figures_change_without_a_reload(light: Open) -> None:
    page = light.page
    page.evaluate("window.loadedOnce = true")
    step = page.locator("#step")
    for _ in range(2):
        before = step.inner_text()
        expect(step).not_to_have_text(before)
    assert page.evaluate("window.loadedOnce")
    expect(page.locator("#active")).to_have_text(str(MEMBERS))
    expect(page.locator("#fewer")).to_contain_text("times fewer than dense")


def test_charts_without_a_value_are_accessible(watched: CrowdedCoordinator, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("**/api/**", lambda route: route.abort())
    page.goto(watched.address)
    plot = page.get_by_role("slider", name="Loss")
    expect(plot).to_have_attribute("aria-valuenow", "0")
    expect(plot).to_have_attribute("aria-valuetext", "no loss measured yet")
    assert serious(page) == []
    context.close()


def test_markup_in_names_is_shown_as_text(light: Open) -> None:
    names = light.page.locator("#node-table tbody th").all_inner_texts()
    assert len(names) == 15
    assert all(re.fullmatch(re.escape(NAME) + r"-\d+", name) for name in names)
    assert light.page.locator("main img").count() == 0
    assert NAME in light.page.locator("#thanks tbody th").first.inner_text()


def test_the_page_runs_no_script_but_its_own(watched: CrowdedCoordinator, browser: Browser) -> None:
    opened = Open(browser, watched.address)
    assert not runs_injected_scripts(opened.page)
    opened.context.close()


def test_the_coordinator_sorts_and_pages_the_table(watched: CrowdedCoordinator, light: Open) -> None:
    page = light.page
    expect(page.locator("#which")).to_have_text("1 to 15 of 200")
    page.locator("#after").click()
    expect(page.locator("#which")).to_have_text("16 to 30 of 200")
    heading = page.locator("#node-table th", has_text="node").first
    heading.get_by_role("button").press("Enter")
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("#which")).to_have_text("1 to 15 of 200")
    expect(page.locator("#node-table tbody th").nth(1)).to_have_text(f"{NAME}-10")
    with urlopen(f"{watched.address}/api/status?sort=-name") as answer:
        data = answer.read()
    assert len(data) < DETAILS_BYTES_MAX
    assert json.loads(data)["node_list"]["sort"] == "-name"
    assert "early" in json.loads(data)["node_list"]["sorts"]


def test_a_reader_sorts_only_by_what_the_coordinator_offers(watched: CrowdedCoordinator, light: Open) -> None:
    """The test stands between the page and the coordinator, and answers as it does to strangers."""
    page = light.page

    def as_to_a_stranger(route: Route) -> None:
        found = route.fetch().json()
        found["node_list"] |= {"sort": "tokens", "sorts": ["name", "rounds", "tokens"]}
        route.fulfill(json=found)

    page.route("**/api/status?**", as_to_a_stranger)
    headings = page.locator("#node-table thead th")
    headings.filter(has_text="weight").get_by_role("button").press("Enter")
    expect(headings.filter(has_text="weight").get_by_role("button")).to_be_disabled()
    expect(headings.filter(has_text="tokens")).to_have_attribute("aria-sort", "descending")
    page.unroute_all(behavior="wait")
    headings.filter(has_text="rounds").get_by_role("button").press("Enter")
    expect(headings.filter(has_text="weight").get_by_role("button")).to_be_enabled()


def test_messages_stay_small(watched: CrowdedCoordinator) -> None:
    with urlopen(f"{watched.address}/api/live", timeout=10) as stream:
        lines = [next(line for line in stream if line.startswith(b"data: {")) for _ in range(2)]
    for line in lines:
        assert len(line) < MESSAGE_BYTES_MAX
        assert json.loads(line.removeprefix(b"data: "))["nodes"]["active"] == MEMBERS


def test_the_keyboard_reads_values_of_a_chart(light: Open) -> None:
    plot = light.page.get_by_role("slider", name="Loss")
    plot.focus()
    plot.press("Home")
    expect(plot).to_have_attribute("aria-valuetext", re.compile(r"^step 0: training \d\.\d+, held out \d\.\d+$"))
    light.page.locator("#loss-chart summary").click()
    rows = light.page.locator("#loss-chart tbody tr")
    expect(rows.nth(1)).to_be_visible()  # the rows are created shortly after the click
    assert rows.count() >= 2
    assert re.search(r"\d\.\d{3}", rows.first.inner_text())
    light.page.locator("#loss-chart summary").click()


def test_the_curves_download_as_csv(watched: CrowdedCoordinator, light: Open) -> None:
    rows = _downloaded_curves(light.page)
    steps = [int(row["step"]) for row in rows]
    state = open_state(watched.swarm.state, read_only=True)
    sealed = {step + 1: len(nodes) for step, _, nodes in state.ledger.counted_at(0, steps[-1])}
    state.close()
    assert {int(row["step"]): int(row["nodes"]) for row in rows if row["nodes"]} == sealed
    assert steps == sorted(set(steps))
    assert rows[0]["held_out_loss:held_out"]  # measured at step 0
    newest = rows[-1]
    assert float(newest["training_loss"]) > 0
    assert int(newest["bytes_up"]) > 0


def _downloaded_curves(page: Page) -> list[dict[str, str]]:
    with page.expect_download() as started:
        page.get_by_role("link", name="Download the curves as CSV").click()
    download = started.value
    assert re.fullmatch(r"thinwire-[0-9a-f]{16}\.csv", download.suggested_filename)
    with Path(download.path()).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_chosen_theme_survives_a_reload(light: Open) -> None:
    page = light.page
    light_paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light_paper
    page.reload()
    page.locator("#link[data-link=live]").wait_for()
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light_paper
    page.get_by_role("button", name="Dark").click()


@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 360)])
def test_the_page_has_no_serious_accessibility_violations(
    watched: CrowdedCoordinator, browser: Browser, dark: bool, width: int
) -> None:
    opened = Open(browser, watched.address, dark=dark, width=width)
    opened.page.locator("#node-table tbody tr").first.wait_for()
    assert serious(opened.page) == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.errors == []
    opened.context.close()


def test_a_long_list_of_void_rounds_can_be_scrolled_by_keyboard(watched: CrowdedCoordinator, browser: Browser) -> None:
    """The test stands between the page and the coordinator, which has 1 void round or none."""
    voids, why = 60, "no contribution"

    def with_voids(route: Route) -> None:
        found = route.fetch().json()
        one = {"first": 1, "last": 1, "why": why, "ago_s": 60}
        found |= {"voids": [one] * voids, "rounds_void": voids}
        route.fulfill(json=found)

    context = browser.new_context()
    page = context.new_page()
    page.route("**/api/live", lambda route: route.abort())
    page.route("**/api/status?**", with_voids)
    page.goto(watched.address)
    expect(page.locator("#voids li")).to_have_count(voids)
    assert serious(page) == []
    page.unroute_all(behavior="wait")  # else the page's next request ends in the test after this one
    context.close()


def test_the_page_requests_nothing_from_other_servers(watched: CrowdedCoordinator, light: Open) -> None:
    assert light.errors == []
    assert len(light.asked) > 5
    assert [url for url in light.asked if not url.startswith(f"{watched.address}/")] == []


def test_what_evaluate_has_found_is_drawn_by_step(watched: CrowdedCoordinator, browser: Browser, light: Open) -> None:
    expect(light.page.locator("#evaluated")).to_be_hidden()
    one = Result(kind="task", name=NAME, step=0, metric="acc", value=0.25, stderr=0.04, count=200)
    found = [one.model_copy(update={"step": step, "value": 0.25 + step / 100}) for step in (0, 2, 4)]
    norm = [one.model_copy(update={"metric": "acc_norm", "stderr": None}) for one in found]
    others = [Result(kind="text", name="a-text.txt", step=4, metric="loss", value=2.5)]
    add_results(watched.swarm.state, [*found, *norm, *others])
    expect(light.page.locator("#evaluated h3")).to_have_text([f"{NAME} task", "a-text.txt text"])
    plot = light.page.get_by_role("slider", name=f"{NAME}, task")
    plot.focus()
    plot.press("Home")
    expect(plot).to_have_attribute("aria-valuetext", "step 0: acc 0.250 ± 0.040, acc_norm 0.250")
    plot.press("ArrowRight")
    expect(plot).to_have_attribute("aria-valuetext", "step 2: acc 0.270 ± 0.040, acc_norm 0.270")
    light.page.locator("#evaluated summary").first.press("Enter")
    expect(light.page.locator("#evaluated tbody tr").last).to_have_text(re.compile("^40.290 ± 0.0400.290$"))
    assert light.errors == []
    narrow = Open(browser, watched.address, dark=True, width=360)
    expect(narrow.page.locator("#evaluated .plot .dot")).to_have_count(7)
    assert serious(narrow.page) == []
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 360
    narrow.context.close()
    with (watched.swarm.state / FILE).open("ab") as file:
        file.write(b'{"kind":"task","name":"torn')
    assert len(watched.status()["evaluated"]) == 2


def test_a_run_that_has_diverged_shows_no_old_loss(watched: CrowdedCoordinator, browser: Browser) -> None:
    """The test stands between the page and the coordinator, because a run does not diverge when it is told to."""

    def diverged(route: Route) -> None:
        found = route.fetch().json()
        found["loss"]["diverged"] = [41]
        route.fulfill(json=found)

    context = browser.new_context()
    page = context.new_page()
    page.route("**/api/live", lambda route: route.abort())
    page.route("**/api/status?**", diverged)
    page.goto(watched.address)
    expect(page.locator("#loss")).to_have_text("diverged")
    expect(page.locator("#loss-note")).to_have_text("not a finite number at step 41")
    expect(page).to_have_title(re.compile("^diverged · "))
    page.unroute_all(behavior="wait")
    expect(page.locator("#loss")).to_have_text(re.compile(r"^\d+\.\d{3}$"))
    context.close()


def test_an_amendment_is_marked_in_the_curves_and_said_as_text(watched: CrowdedCoordinator, light: Open) -> None:
    done = watched.swarm.command("amend", "--set", "schedule.floor=0.2", "--because", NAME)
    assert done.returncode == 0, done.stderr
    page = light.page
    expect(page.locator(".plot .mark")).to_have_count(3)
    plot = page.get_by_role("slider", name="Loss")
    plot.focus()
    plot.press("End")
    expect(page.locator("#loss-chart .read")).to_contain_text(f"schedule.floor = 0.2: {NAME}")
    plot.press("Home")
    expect(page.locator("#loss-chart .read")).not_to_contain_text("schedule.floor")
    assert light.errors == []


def test_curves_have_no_gap_after_the_line_failed(watched: CrowdedCoordinator, browser: Browser, line: Line) -> None:
    opened = Open(browser, line.address)
    page, missed = opened.page, 4

    def without_a_point() -> int:
        """Steps that the charts skip: few, because messages come once a second."""
        plot = page.get_by_role("slider", name="Tokens")
        return opened.step - int(plot.get_attribute("aria-valuemax") or 0)

    step = opened.step
    line.shut()
    expect(page.locator("#state")).to_have_text("The coordinator is unreachable")
    until(lambda: watched.status()["step"] > step + missed, "steps that the page misses", watched.coordinator)
    line.open()
    until(lambda: opened.step > step + missed, "the page shows new steps", watched.coordinator)
    until(lambda: without_a_point() < missed, "the charts have the steps that the page missed", watched.coordinator)
    opened.context.close()


def test_the_page_reconnects_after_a_restart_of_the_coordinator(watched: CrowdedCoordinator, light: Open) -> None:
    page = light.page
    page.evaluate("window.loadedOnce = true")
    before = watched.status()
    watched.coordinator.tell(signal.SIGKILL)
    expect(page.locator("#state")).to_have_text("The coordinator is unreachable")
    watched.start_again()
    expect(page.locator("#link")).to_have_attribute("data-link", "live")
    step = before["step"] + 2
    until(lambda: light.step > step, "the page shows new steps", watched.coordinator)
    assert page.evaluate("window.loadedOnce")
    for table in ("node-table", "thanks"):
        name = page.locator(f"#{table} tbody th").first
        expect(name).to_contain_text(NAME)
    after = watched.status()
    assert after["term"] != before["term"]
    assert after["tokens"] > before["tokens"]  # tokens of earlier terms still count
    mine = [error for error in light.errors if "Failed to load resource" not in error]
    assert mine == []  # the browser itself logs the failed requests
