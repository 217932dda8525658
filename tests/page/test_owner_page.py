"""The owner's page of a node: it shows the node, pauses and stops it, and answers nobody without its key."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from support.chromium import IN_CHROMIUM, runs_injected_scripts, serious
from support.real import END_S, RealSwarm, ended, real_swarm, run_text, until
from support.reports import small_report
from thinwire_node.cli.page import OwnerPage
from thinwire_node.observe import status
from thinwire_proto.errors import ConfigError

RUN = run_text(100_000, length_ms=1000)


class Owned:
    """A node, and its page. `page` is its process; `address` has no key."""

    def __init__(self, swarm: RealSwarm) -> None:
        self.swarm = swarm
        swarm.coordinator(RUN)
        self.node = swarm.node("owned")
        until((swarm.folder / "owned" / "status.json").exists, "a report", *swarm.processes)
        swarm.reached(2)
        command = ["thinwire-node", "page", "--state-dir", str(swarm.folder / "owned")]
        self.page = swarm.start("page", *command)
        until(lambda: "#" in self.page.text(), "the page", self.page)
        self.whole = self.page.text().split()[0]
        self.address, _, self.key = self.whole.partition("#")

    def ask(
        self, path: str, body: Any = None, key: str | None = None, host: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        place = urlsplit(self.address).netloc
        connection = http.client.HTTPConnection(place, timeout=10)
        headers = {"authorization": f"Bearer {self.key if key is None else key}", "host": host or place}
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, json.loads(data) if data.startswith(b"{") else {"text": data.decode()}

    def words(self) -> str:
        return str(self.ask("/api/node")[1]["report"]["words"])


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owned]:
    with real_swarm(tmp_path_factory.mktemp("owned")) as swarm:
        yield Owned(swarm)


def test_nobody_is_answered_without_the_key(owned: Owned) -> None:
    for key in ("", "x", owned.key[:-1], owned.key + "x"):
        status, said = owned.ask("/api/node", key=key)
        assert (status, list(said)) == (403, ["error"])
        assert owned.ask("/api/order", {"order": "pause", "words": []}, key=key)[0] == 403
    assert owned.ask("/api/node", host="rebound.example")[0] == 421
    assert "paused" not in owned.words()


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/api/order", {"order": "explode", "words": []}, "not what the page sends"),
        ("/api/order", [], "not what the page sends"),
        ("/api/order", {"order": "pause", "words": ["tomorrow-ish"]}, ""),
        ("/api/limits", {"entries": ["max-upload=-3"]}, ""),
        ("/api/limits", {"entries": ["nonsense"]}, ""),
        ("/api/limits", {"entries": ["\ud800=1"]}, "is no limit"),
    ],
)
def test_wrong_orders_change_nothing_and_say_why(owned: Owned, path: str, body: Any, why: str) -> None:
    before = owned.ask("/api/node")[1]["limits"]
    status, said = owned.ask(path, body)
    assert status == 400
    assert said["error"]
    assert why in said["error"]
    assert owned.ask("/api/node")[1]["limits"] == before


@IN_CHROMIUM
def test_the_owner_pauses_and_resumes_and_sets_a_limit(owned: Owned, browser: Browser) -> None:
    page = browser.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda line: failures.append(line.text) if line.type == "error" else None)
    page.goto(owned.whole)
    expect(page.locator("#condition")).to_have_text("the node is running")
    expect(page.locator("#in-all td").nth(1)).not_to_have_text("0")
    expect(page.locator("#share")).to_contain_text("% of the")
    assert serious(page) == []
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#words")).to_contain_text("paused")
    step = owned.swarm.status().step
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#words")).not_to_contain_text("paused")
    owned.swarm.reached(step + 2)
    until((owned.swarm.folder / "owned" / "replica.safetensors").exists, "a saved model", *owned.swarm.processes)
    page.get_by_role("button", name="Let it write").click()
    expect(page.locator("#sample")).to_contain_text("def ")
    page.get_by_label("Set").fill("max-upload=5MB/s")
    page.get_by_label("Set").press("Enter")
    expect(page.locator("#limits")).to_contain_text("max-upload = 5MB/s")
    page.get_by_label("Set").fill("max-upload=fast")
    page.get_by_label("Set").press("Enter")
    expect(page.locator("#said")).to_contain_text("fast")
    for width in (360, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [text for text in failures if "400" not in text] == []
    assert not runs_injected_scripts(page)
    page.close()


def test_the_node_stops_after_its_round_and_the_page_goes_on(owned: Owned) -> None:
    status, said = owned.ask("/api/order", {"order": "stop", "words": []})
    assert (status, said) == (200, {"said": "the node stops after its round"})
    assert ended(owned.node) == 0
    found = owned.ask("/api/node")[1]
    assert not found["runs"]
    assert "it left" in found["condition"]
    assert owned.ask("/api/order", {"order": "stop", "words": []})[0] == 400
    owned.page.end(END_S)
    assert owned.page.popen.returncode == 0
    assert "Traceback" not in owned.page.text()


def test_a_folder_without_a_node_has_no_page(owned: Owned, tmp_path: Path) -> None:
    page = owned.swarm.start("no page", "thinwire-node", "page", "--state-dir", str(tmp_path))
    assert ended(page) != 0
    assert "no node has run here" in page.text()


@contextmanager
def page_of(folder: Path) -> Iterator[OwnerPage]:
    """A page that nobody serves."""

    async def ask() -> str:
        return ""

    page = OwnerPage(folder, None, 0, ask)
    with page._server._socket:
        yield page


WRITER = """
from thinwire_common.program import print_pieces, run_program
run_program("thinwire-node", lambda: print_pieces(iter(["caf\u00e9 ", "\u65e5\u672c"])))
"""


def test_the_model_may_write_letters_that_the_system_does_not_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe of Windows, or under de_DE.ISO-8859-1, has its encoding."""
    program = tmp_path / "writer.py"
    program.write_text(WRITER)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{program}'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    with page_of(tmp_path) as page:
        assert page._sample({}) == {"said": "caf\u00e9 \u65e5\u672c"}


def test_the_page_says_that_the_node_has_its_limits_elsewhere(tmp_path: Path) -> None:
    status.write(tmp_path, replace(small_report(), limits_file="/elsewhere/mine.toml"))
    (tmp_path / "limits.toml").write_text('max-upload = "1MB/s"')
    with page_of(tmp_path) as page:
        (said,) = page._node(None)["limits"]
    assert "last started with --limits /elsewhere/mine.toml" in said


def test_a_file_in_the_folder_of_the_shell_is_no_part_of_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('a file of the owner')")
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path)
    with page_of(Path("node")) as page, pytest.raises(ConfigError, match="has no model yet"):
        page._sample({})
