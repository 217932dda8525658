"""Tests that the trust in nodes outlives the process, and that the coordinator's bans are enforced at the door."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from thinwire_coordinator.hall.access.door import Candidate, DoorReason
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.events import Cause, Verdict
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_coordinator.star.trust.evidence import Decision
from thinwire_coordinator.star.trust.observer import AccessTrustStore
from thinwire_coordinator.star.trust.standing import Standing
from thinwire_proto.errors import Locked
from thinwire_proto.identity.keys import SecretKey

NOW = 1_790_000_000.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    found = Workers()
    yield found
    found.close()


def some_standing(node: str) -> Standing:
    found = Standing(node, counted=7, vouched=1.5, audits=2, bans=1, pardoned=1)
    found.add(Cause.COPY, 3.0)
    found.suspect(Cause.NOISE, "its votes agree with nobody")
    return found


async def test_a_ban_that_could_not_be_written_is_written_with_the_next_standings(
    tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(AccessStore(tmp_path, needs_invite=False)) as access:
        kept = AccessTrustStore(access, workers, lambda: NOW)
        banned = Decision("ab" * 16, 3, Verdict.BANNED, Cause.NOISE, "its votes harm", until=NOW + 30)
        with monkeypatch.context() as during:

            def locked(standings: object) -> None:
                raise Locked("another program holds the lock")

            during.setattr(access.standings, "put", locked)
            kept.save([some_standing(banned.node)], [banned])
            await workers.submit(Job.WRITE_TRUST, lambda: None)
        assert not access.bans.decisions(9)
        for _ in range(2):
            kept.save([some_standing(banned.node)], [])
            await workers.submit(Job.WRITE_TRUST, lambda: None)
        assert [found.what for found in access.bans.decisions(9)] == ["banned"]


async def test_standings_and_bans_outlive_the_process(tmp_path: Path, workers: Workers) -> None:
    key = SecretKey().public
    node = key.node_id
    with closing(AccessStore(tmp_path, needs_invite=False)) as access:
        kept = AccessTrustStore(access, workers, lambda: NOW)
        assert list(kept.load()) == []
        suspected = Decision(node, 3, Verdict.SUSPECTED, Cause.NOISE, "its votes agree with nobody")
        banned = dataclasses.replace(suspected, verdict=Verdict.BANNED, until=NOW + 30)
        kept.save([some_standing(node)], [suspected])
        kept.save([some_standing(node)], [banned])
        await workers.submit(Job.WRITE_TRUST, lambda: None)  # the ones before are written then
    with closing(AccessStore(tmp_path, needs_invite=False)) as access:
        assert [standing.plain() for standing in AccessTrustStore(access, workers).load()] == [
            some_standing(node).plain()
        ]
        assert [(found.what, found.by) for found in access.bans.decisions(9)] == [
            ("banned", "coordinator"),
            ("suspected", "coordinator"),
        ]
        denied = access.admit(Candidate(key, b"", "", ""), NOW + 10)
        assert denied is not None
        assert (denied.reason, denied.text) == (
            DoorReason.BANNED,
            "this node is banned for 20 s more: its votes agree with nobody",
        )
        assert access.admit(Candidate(key, b"", "", ""), NOW + 30) is None


async def test_standings_are_bounded_and_damaged_ones_are_left_out(
    tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thinwire_coordinator.hall.access.store.STANDINGS_MAX", 3)
    with closing(AccessStore(tmp_path)) as access:
        access.standings.put({f"{number}": some_standing("").plain() for number in range(5)})
        access.standings.put({"3": {"counted": "many"}, "4": []})
        assert list(access.standings.all()) == ["2", "3", "4"]
        assert [standing.node for standing in AccessTrustStore(access, workers).load()] == ["2"]


async def test_a_disk_that_fails_is_told_and_does_not_end_the_run(
    tmp_path: Path, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    access = AccessStore(tmp_path)
    access.close()
    with caplog.at_level(logging.WARNING):
        AccessTrustStore(access, workers).save([some_standing("a")], [])
        await workers.submit(Job.WRITE_TRUST, lambda: None)
    assert "cannot keep the trust in nodes" in caplog.text
