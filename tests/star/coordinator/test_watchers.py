"""Tests that observers cannot end a swarm, and that queries do not delay a seal."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from support.swarm_bench import PATIENCE_S, Bench, Busy, key_of
from thinwire_coordinator.hall.access.organizer import OrganizerSecret, organizer_proof
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.access.transport import plain_transport
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.events import Event, RoundSealed
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.observe.definitions import ROUNDS, WIRE_BYTES
from thinwire_coordinator.hall.observe.metrics import Counters
from thinwire_coordinator.hall.run_opening import ReplayedRun, StartWorker
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.monitoring import Monitoring
from thinwire_coordinator.star.calls import StarService
from thinwire_proto.wire.metadata import ORGANIZER, SESSION
from thinwire_proto.wire.reasons import Reason
from thinwire_proto.wire.service_pb2 import StatusRequest


class Broken:
    """A watcher that raises at every event."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def watch(self, event: Event) -> None:
        self.told.append(event)
        raise ValueError("a broken watcher")


async def test_failures_of_a_watcher_are_logged_and_do_not_end_the_swarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, broken, seen = Bench(tmp_path), Broken(), list[Event]()
    bench.swarm.events.watchers += [broken.watch, seen.append]
    member = bench.join("a")
    with caplog.at_level(logging.ERROR):
        await bench.attend(member)
        for seed in range(2):
            receipt = await asyncio.wait_for(bench.contribute(member, seed), PATIENCE_S)
            assert (receipt.reason, receipt.step) == (Reason.COUNTED, seed)
            bench.replica.apply(bench.state.update(bench.state.ledger.row(seed)), b"")
    assert not bench.swarm.tasks.failed.done()
    assert broken.told == seen  # the other watchers still get every event
    assert sum(isinstance(event, RoundSealed) for event in seen) == 2
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == 1  # only the first failure logs a traceback
    assert len(caplog.records) == len(seen)
    await bench.close()


class Strange:
    """The context of a stranger's call."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


class Known(Strange):
    """The context of the call of a node, or of the organizer."""

    def __init__(self, key: str, proof: str) -> None:
        self._metadata = (key, proof)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (self._metadata,)


async def test_a_stranger_cannot_have_the_replica_read_and_others_can(tmp_path: Path) -> None:
    """It takes seconds for a large model, in which no round ends."""
    bench = Bench(tmp_path)
    joined = bench.swarm.members.join(key_of("a").public, "a")
    assert joined is not None
    ask, request = StarService(bench.swarm, bench.door).Status, StatusRequest(fingerprint=True)  # type: ignore[abstract]
    with Busy(bench.workers, Job.FINGERPRINT):
        forged = Known(ORGANIZER, organizer_proof(key_of("a"), time.time()))
        for stranger in (Strange(), Known(SESSION, "x" * 32), forged):
            told = await asyncio.wait_for(ask(request, stranger), PATIENCE_S / 2)  # type: ignore[arg-type]
            assert not told.HasField("fingerprint")
    organizer = Known(ORGANIZER, organizer_proof(bench.state.key, time.time()))
    for known in (Known(SESSION, joined[1]), organizer):
        told = await asyncio.wait_for(ask(request, known), PATIENCE_S)  # type: ignore[arg-type]
        assert (told.step, told.fingerprint) == (0, bench.replica.model_fingerprint())
    await bench.close()


def test_bytes_on_the_wire_have_their_direction() -> None:
    counts = Counts(0)
    counts.traffic.connections = Mock(can_look=True, wire=Mock(sent=1, received=2))
    (found,) = [one for one in Counters(counts).collect() if one.name == WIRE_BYTES.name.removesuffix("_total")]
    assert {one.labels["direction"]: one.value for one in found.samples} == {"sent": 1, "received": 2}


def test_rounds_are_counted_by_how_they_ended_and_why() -> None:
    counts = Counts(0)
    for how, numbers in ((counts.rounds_sealed, (4, 3)), (counts.rounds_void, (2, 1))):
        how.update(dict(zip(("everybody", "time"), numbers, strict=True)))
    (found,) = [one for one in Counters(counts).collect() if one.name == ROUNDS.name.removesuffix("_total")]
    told = {(one.labels["result"], one.labels["reason"]): one.value for one in found.samples}
    assert told == {("sealed", "everybody"): 4, ("sealed", "time"): 3, ("void", "everybody"): 2, ("void", "time"): 1}


@pytest.mark.parametrize(
    ("header", "in_full"),
    [
        (None, True),
        *[((name, "198.51.100.7"), False) for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via")],
        (("Cookie", "another=1"), True),
    ],
)
async def test_a_page_on_loopback_shows_all_unless_a_proxy_passed_the_request_on(
    tmp_path: Path, header: tuple[str, str] | None, *, in_full: bool
) -> None:
    """A proxy that the organizer has not named passes on what anybody asks."""
    bench = Bench(tmp_path)
    settings = CoordinatorSettings(tmp_path, "127.0.0.1:0", None, wait_for=1, evaluate_every=100, http="127.0.0.1:0")
    monitoring = Monitoring(settings, bench.workers)
    monitoring.start(plain_transport(), OrganizerSecret("a secret of the organizer"))
    run = ReplayedRun(bench.replica, Retention(bench.state, None), [], list, {})
    await monitoring.begin(bench.swarm, AccessStore(tmp_path), run, StartWorker(bench.workers))
    monitoring.listening(bench.swarm, 1)
    async with httpx.AsyncClient(base_url=str(monitoring.page_address)) as client:
        await client.get("/api/status")  # the organizer's answer, which is kept for a moment, and not for others
        answer = await client.get("/api/status", headers=dict([header] if header else []))
    assert (len(answer.json()["node_list"]["sorts"]) > 3) == in_full
    await monitoring.close()
    await bench.close()


async def test_queries_are_answered_while_a_seal_waits_for_the_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    assert (await bench.contribute(member, 1)).reason is Reason.COUNTED
    counted = bench.state.ledger.row(0).counted[0].contribution
    with Busy(bench.workers, Job.WRITE_UPDATE):
        asked = StarService(bench.swarm, bench.door).Status(StatusRequest(), Strange())  # type: ignore[abstract,arg-type]
        assert (await asyncio.wait_for(asked, PATIENCE_S / 2)).step == 1
        found = await asyncio.wait_for(bench.swarm.ask_receipt(counted), PATIENCE_S / 2)
        assert (found.reason, found.step) == (Reason.COUNTED, 0)
    await bench.close()


@pytest.mark.parametrize("job", [Job.READ_UPDATE, Job.READ_HISTORY, Job.MEASURE_DISKS])
async def test_slow_reads_for_followers_and_watchers_do_not_delay_a_receipt(tmp_path: Path, job: Job) -> None:
    """An update may come from a remote store, and metrics may read the whole ledger."""
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    await asyncio.wait_for(bench.contribute(member, 1), PATIENCE_S)
    (counted,) = bench.state.ledger.row(0).contributions
    with Busy(bench.workers, job):
        found = await asyncio.wait_for(bench.swarm.ask_receipt(counted), PATIENCE_S / 2)
    assert (found.reason, found.step) == (Reason.COUNTED, 0)
    await bench.close()
