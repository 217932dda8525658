"""Nodes after a promotion of a standby: they follow the newest one, and give up rows only for one."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from support.small import random_replica, small_contract
from thinwire_node.bootstrap import Bootstrap, Replaced
from thinwire_node.exchange.port import Admission, Applicant, Refused
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_node.storage.known_coordinators import KnownCoordinators, Route, read_known
from thinwire_node.storage.state import Head, NodeState
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.identity.terms import NO_PROMOTION, PROMOTION_TERMS, ProvenTerm, prove_term

CONTRACT, KEY = small_contract(), SecretKey()
FIRST, SECOND = (prove_term(KEY, CONTRACT.hash, number * PROMOTION_TERMS) for number in (1, 2))


class Coordinator:
    """Admits a node with what it is told to say."""

    def __init__(self, term: ProvenTerm = NO_PROMOTION, *, rewound: bool = False) -> None:
        self._said = Admission(CONTRACT, 3, term=term, rewound=rewound)
        self.shown: ProvenTerm | None = None

    async def join(self, applicant: Applicant) -> Admission:
        self.shown = applicant.term
        return self._said


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    found = NodeState(tmp_path / "node")
    random_replica(CONTRACT).save(found.path("replica.safetensors"))
    found.advance(Head(7, bytes(32)))
    found.write_head()
    return found


def join(state: NodeState, coordinator: Any) -> None:
    settings = NodeSettings("first:1", state.path(""), "cpu", NodeOptions("", 1, None), None)
    machine: Any = None  # without a part, nothing asks for it
    bootstrap = Bootstrap(settings, machine, state, Record(), random.Random(1), lambda doing: None)
    asyncio.run(bootstrap.join(coordinator, "a node"))
    state.path("contract.json").unlink()


def test_a_coordinator_before_the_promotion_is_refused_and_shown_the_proof(state: NodeState) -> None:
    join(state, Coordinator(FIRST))
    for older in (NO_PROMOTION, FIRST):
        join(state, Coordinator(SECOND))
        stale = Coordinator(older)
        with pytest.raises(Replaced, match=r"replaced by a machine that was promoted \(term 2,000,000\)"):
            join(state, stale)
        assert stale.shown == SECOND
    assert read_known(state.path("coordinators.json")).term == SECOND


def test_rows_are_given_up_only_for_a_promotion_that_is_new(state: NodeState, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Refused, match="proves no newer promotion"):
        join(state, Coordinator(rewound=True))
    assert state.head == Head(7, bytes(32))
    with caplog.at_level(logging.WARNING):
        join(state, Coordinator(FIRST, rewound=True))
    assert [record.message for record in caplog.records] == [
        "step 7 was lost with the coordinator before; the one that was promoted has 3; going on from there"
    ]
    assert state.head is None
    assert not state.path("replica.safetensors").exists()
    assert not state.path("head.json").exists()
    state.advance(Head(9, bytes(32)))
    with pytest.raises(Refused, match="proves no newer promotion"):
        join(state, Coordinator(FIRST, rewound=True))
    assert state.head == Head(9, bytes(32))


def test_without_a_standby_nothing_is_written(state: NodeState) -> None:
    join(state, Coordinator())
    assert state.known.admitted_by("first:1", "first:1") is state.known
    assert not state.path("coordinators.json").exists()


def test_all_addresses_are_tried_before_a_pause_and_the_last_that_answered_is_first() -> None:
    known = KnownCoordinators(standby="second:1")
    route = Route(known, "first:1")
    assert (route.address, route.failed(known), route.address) == ("first:1", True, "second:1")
    assert (route.failed(known), route.address) == (False, "first:1")
    known = known.admitted_by("second:1", "first:1")
    assert Route(known, "first:1").address == "second:1"
    assert Route(known, "another:1").address == "another:1", "the volunteer has given a new invite"
    route = Route(KnownCoordinators(), "first:1")
    assert (route.failed(KnownCoordinators()), route.address) == (False, "first:1")


def test_what_is_known_outlives_the_process_and_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    path = tmp_path / "coordinators.json"
    known = KnownCoordinators("first:1", "second:1", "third:1", SECOND)
    path.write_bytes(known.written())
    assert read_known(path) == known
    path.write_bytes(known.written()[:-9])
    assert read_known(path) == KnownCoordinators()
