"""Tests the organizer's panel in Chromium, on a coordinator that strangers have joined."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from support.chromium import IN_CHROMIUM, PATIENCE_MS, serious
from support.real import RealSwarm, real_swarm, run_text, until
from thinwire_coordinator.hall.access.organizer import FILE

MEMBERS = 3
RUN = run_text(100_000, rounds='min_contributions = 1\npace = "clock"', length_ms=500)
NAME = "<img src=x onerror=alert(1)>"

pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSwarm]:
    with real_swarm(tmp_path_factory.mktemp("panel")) as found:
        coordinator = found.coordinator(RUN, "--http", "127.0.0.1:0")
        sent = "\u202e\x1b[31m" + NAME + "\u200b"
        crowd = ["python", "-m", "bench.speed.light_members", found.invitation]
        members = found.start("crowd", *crowd, "--members", str(MEMBERS), "--name", sent)
        until(lambda: len(found.active()) == MEMBERS, "all members are active", members, coordinator)
        yield found


@pytest.fixture(scope="module")
def opened(swarm: RealSwarm, browser: Browser) -> Page:
    """The panel, of one visitor."""
    return open_panel(swarm, browser)


@pytest.fixture
def page(swarm: RealSwarm, opened: Page) -> Page:
    """The panel, logged in. Tests do not rely on an earlier one, which another worker may have run."""
    opened.locator("#login, #panel").locator("visible=true").first.wait_for()
    if opened.locator("#login").is_visible():
        log_in(swarm, opened)
    return opened


def open_panel(swarm: RealSwarm, browser: Browser) -> Page:
    found = browser.new_page(viewport={"width": 1200, "height": 900})
    found.set_default_timeout(PATIENCE_MS)
    found.goto(f"{swarm.ready['page']}/organizer")
    return found


def log_in(swarm: RealSwarm, page: Page) -> None:
    page.get_by_label("Secret").fill((swarm.state / FILE).read_text().strip())
    page.get_by_label("Secret").press("Enter")
    page.locator("#panel").wait_for()


def ask(swarm: RealSwarm, path: str) -> tuple[int, bytes]:
    with closing(HTTPConnection(swarm.ready["page"].removeprefix("http://"), timeout=10)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_stranger_sees_the_login_and_nothing_else(swarm: RealSwarm, browser: Browser) -> None:
    page = open_panel(swarm, browser)
    expect(page.locator("#panel")).to_be_hidden()
    page.get_by_label("Secret").fill("a wrong secret")
    page.get_by_label("Secret").press("Enter")
    expect(page.locator("#said")).to_contain_text("the secret is wrong")
    assert serious(page) == []
    assert ask(swarm, "/organizer/state")[0] == 401
    for path in ("/api/status", "/api/history", "/history.csv", "/metrics", "/"):
        with urlopen(swarm.ready["page"] + path, timeout=10) as answer:
            assert b"127.0.0.1" not in answer.read(), path  # the address of every node here
    page.close()


def test_the_organizer_logs_in_by_keyboard_and_sees_nodes_with_their_addresses(
    swarm: RealSwarm, browser: Browser
) -> None:
    page = open_panel(swarm, browser)
    log_in(swarm, page)
    rows = page.locator("#nodes tbody tr")
    expect(rows).to_have_count(MEMBERS)
    for name in rows.locator("th").all_inner_texts():
        assert re.fullmatch(re.escape(NAME) + r"-\d+", name)
    expect(rows.first).to_contain_text("127.0.0.1")
    assert page.locator("main img").count() == 0
    assert serious(page) == []
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.close()


def test_an_invite_is_made_shown_once_and_revoked(swarm: RealSwarm, page: Page) -> None:
    before = page.locator("#invites tbody tr").count()
    page.get_by_label("For whom").fill("ann\u202e")
    page.get_by_role("button", name="Make an invite").press("Enter")
    expect(page.locator("#invite")).to_contain_text("thinwire-node start ")
    rows = page.locator("#invites tbody tr")
    expect(rows).to_have_count(before + 1)
    assert rows.first.locator("td").first.inner_text() == "ann"
    page.get_by_role("button", name=re.compile("^Revoke invite")).first.press("Enter")
    expect(rows.first).to_contain_text("revoked")


TO_THE_RIGHT = """() => [...document.querySelectorAll("#panel table")].map((table) =>
    [...table.tHead.rows, ...table.tBodies[0].rows].map((line) =>
        [...line.cells].map((cell) => getComputedStyle(cell).textAlign === "right")))"""
"""By table, line and column, the head first."""


def test_each_column_is_aligned_as_its_head(swarm: RealSwarm, page: Page) -> None:
    swarm.command("invite", "--uses", "3")
    expect(page.locator("#invites tbody tr", has_text="0 of 3")).not_to_have_count(0)
    expect(page.locator("#nodes tbody tr")).to_have_count(MEMBERS)
    for head, *rows in page.evaluate(TO_THE_RIGHT):
        assert any(head)
        assert all(row == head for row in rows)


def test_a_click_counts_if_the_panel_is_refreshed_in_the_middle_of_it(page: Page) -> None:
    asked: list[str] = []

    def answered(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.once("dialog", answered)
    page.get_by_role("button", name=re.compile("^Ban ")).first.hover()
    page.mouse.down()
    for _ in range(2):  # when the second answer comes, the panel has shown the first
        with page.expect_response(re.compile("/organizer/state$")):
            pass
    page.mouse.up()
    assert len(asked) == 1


def test_a_node_is_banned_with_a_reason_and_may_return(swarm: RealSwarm, page: Page) -> None:
    asked: list[str] = []

    def answered(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept("it sent \x1b[2Jnoise")

    page.once("dialog", answered)
    page.get_by_role("button", name=re.compile("^Ban ")).first.click()
    row = page.locator("#nodes tbody tr", has_text="banned")
    expect(row).to_contain_text("it sent noise")
    assert asked[0].endswith("The node is told.")
    until(lambda: len(swarm.active()) == MEMBERS - 1, "the node is out", *swarm.processes)
    page.get_by_role("button", name=re.compile("^Unban ")).press("Enter")
    expect(page.locator("#nodes tbody tr", has_text="banned")).to_have_count(0)


def test_a_change_that_did_not_arrive_is_said(page: Page) -> None:
    page.route("**/organizer/*", lambda route: route.abort())
    page.get_by_role("button", name=re.compile("^Revoke invite")).first.click()
    expect(page.locator("#said")).to_contain_text("The coordinator is unreachable")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("#panel")).to_be_visible()  # the browser is still logged in
    page.unroute("**/organizer/*")
    expect(page.locator("#said")).to_have_text("")


def test_rounds_went_on_and_the_organizer_logs_out(swarm: RealSwarm, page: Page) -> None:
    def step() -> int:
        found: dict[str, Any] = json.loads(ask(swarm, "/api/status?nodes=0")[1])
        return int(found["step"])

    before = step()
    until(lambda: step() > before, "rounds go on", *swarm.processes)
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("#panel")).to_be_hidden()
    page.reload()
    expect(page.locator("#login")).to_be_visible()
    expect(page.locator("#panel")).to_be_hidden()
