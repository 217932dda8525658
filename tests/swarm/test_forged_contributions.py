"""Tests that a contribution can be neither altered, moved, replayed nor sent without the node's key.

Each attack is refused with its own reason, and the parameters are those of a run without attacks.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.new_state import make_state
from support.raw_node import RawNode, opened
from support.real import RealSwarm, ended, real_swarm
from support.small import random_votes, small_contract
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import encode_votes

SAMPLES, K = 4, 8
SIGNATURE, LATE, DUPLICATE = pb.Receipt.REASON_SIGNATURE, pb.Receipt.REASON_LATE, pb.Receipt.REASON_DUPLICATE


class Contributor:
    """A node that sends the same votes in every run: those of its seed and the step."""

    def __init__(self, swarm: RealSwarm, seed: int, key: SecretKey | None = None) -> None:
        self.seed = seed
        self.raw = RawNode(swarm, key)
        self._announcements = self.raw.attend()

    def opened(self) -> pb.Announcement:
        """The next open round. The replica has its step."""
        current = opened(self._announcements)
        self.raw.follow(current.step)
        return current

    def payload(self, step: int) -> bytes:
        layout = self.raw.replica.layout
        return encode_votes(random_votes(layout, K, 100 * self.seed + step), layout)

    def send(self, current: pb.Announcement, payload: bytes | None = None, **fields: object) -> pb.Receipt:
        """Send what an honest node would send, except for the given payload and fields of the header."""
        payload = self.payload(current.step) if payload is None else payload
        trained = current.lease[0].start + SAMPLES - 1 if current.lease else None
        fields = {"samples": SAMPLES, "trained_through": trained} | fields
        return self.raw.contribute(current, payload, **fields)

    def signature(self, current: pb.Announcement, samples: int = SAMPLES, **fields: Any) -> bytes:
        """The honest contribution's signature. `fields` replace what it covers."""
        name = self.raw.name(current, self.payload(current.step), **fields)
        return self.raw.key.sign(statements.contribution(name, samples))


@pytest.fixture
def initial(tmp_path: Path) -> Path:
    """The state directory of a run that has not begun."""
    folder = tmp_path / "initial"
    folder.mkdir()
    rounds = {"pace": "barrier", "length_ms": 20_000, "samples": SAMPLES, "min_contributions": 2, "nodes_max": 4}
    make_state(folder, small_contract(round=rounds, demo={"k": K, "magnitude": "sign"})).close()
    return folder


@contextmanager
def two_contributors(folder: Path, initial: Path) -> Iterator[tuple[RealSwarm, Contributor, Contributor]]:
    folder.mkdir()
    with real_swarm(folder) as swarm:
        shutil.copytree(initial, swarm.state)
        swarm.coordinator(None, "--wait-for", "2", "--evaluate-every", "1000")
        yield swarm, Contributor(swarm, 1), Contributor(swarm, 2)


def finish(one: Contributor, current: pb.Announcement, other: Contributor, too: pb.Announcement) -> None:
    """Finish a round honestly. current, too: the round, as each node was told."""
    assert current.round == too.round
    with ThreadPoolExecutor(2) as pool:
        receipts = [pool.submit(one.send, current), pool.submit(other.send, too)]
        for receipt in receipts:
            assert receipt.result().outcome == pb.Receipt.OUTCOME_COUNTED, receipt.result().text


def header_of(announced: pb.Announcement) -> dict[str, object]:
    """The header's fields that say which round it is of, as an honest node sends them."""
    return {
        "term": announced.term,
        "round": announced.round,
        "step": announced.step,
        "base_step": announced.step,
        "trained_through": announced.lease[0].start + SAMPLES - 1,
    }


def fingerprint_without_attacks(folder: Path, initial: Path, steps: int) -> tuple[int, int]:
    with two_contributors(folder, initial) as (swarm, one, other):
        for _ in range(steps):
            finish(one, one.opened(), other, other.opened())
        status = swarm.status(fingerprint=True)
        return status.step, status.fingerprint


Attack = tuple[Contributor, pb.Announcement, bytes, bytes, int]
"""The sender, the round as this node was told of it, the payload, the signature, and the samples that are claimed."""


def attacks(
    one: Contributor, current: pb.Announcement, other: Contributor, too: pb.Announcement, banned: SecretKey
) -> dict[str, Attack]:
    """All attacks on the contribution of `one` to a round. current, too: the round, as each node was told."""
    honest, foreign, right = one.payload(current.step), other.payload(current.step), one.signature(current)
    name = one.raw.name(current, honest)
    statement = statements.contribution(name, SAMPLES)
    of_round = one.signature(current, round_number=current.round + 1)
    of_term = one.signature(current, term=current.term + 1)
    of_contract = one.signature(current, contract_hash=bytes(32))
    of_row = one.raw.key.sign(statements.row(name))
    return {
        "unsigned": (one, current, honest, b"", SAMPLES),
        "altered body": (one, current, foreign, right, SAMPLES),
        "altered samples": (one, current, honest, right, SAMPLES - 1),
        "of another round": (one, current, honest, of_round, SAMPLES),
        "of another term": (one, current, honest, of_term, SAMPLES),
        "of another contract": (one, current, honest, of_contract, SAMPLES),
        "of another statement": (one, current, honest, of_row, SAMPLES),
        "from a stolen session without the key": (one, current, honest, SecretKey().sign(statement), SAMPLES),
        "by the key of a banned node": (one, current, honest, banned.sign(statement), SAMPLES),
        "sent by another node": (other, too, honest, right, SAMPLES),
        "signed for another node": (other, too, honest, other.raw.key.sign(statement), SAMPLES),
    }


def test_altered_contributions_are_refused_and_change_nothing(tmp_path: Path, initial: Path) -> None:
    expected = fingerprint_without_attacks(tmp_path / "honest", initial, 2)
    with two_contributors(tmp_path / "attacked", initial) as (swarm, one, other):
        banned = RawNode(swarm)
        assert swarm.command("ban", banned.key.public.node_id).returncode == 0
        for part in (0, 1):  # in two rounds, because a node may offer only so many contributions in one
            current, too = one.opened(), other.opened()
            found = list(attacks(one, current, other, too, banned.key).items())[part::2]
            for attack, (sender, announced, payload, signature, samples) in found:
                receipt = sender.send(announced, payload, signature=signature, samples=samples)
                assert receipt.outcome == pb.Receipt.OUTCOME_NOT_COUNTED, attack
                assert receipt.reason == SIGNATURE, f"{attack}: {receipt.text}"
            # the honest contribution has the hash of refused ones, and is counted all the same
            finish(one, current, other, too)
        status = swarm.status(fingerprint=True)
        assert (status.step, status.fingerprint) == expected
        assert "signatures: 2 of rows and 4 of contributions are correct" in swarm.verify()


def test_replayed_contributions_are_refused_and_change_nothing(tmp_path: Path, initial: Path) -> None:
    expected = fingerprint_without_attacks(tmp_path / "honest", initial, 3)
    with two_contributors(tmp_path / "attacked", initial) as (swarm, one, other):
        # in the same round: the second of two is refused
        first, too = one.opened(), other.opened()
        payload, signature = one.payload(first.step), one.signature(first)
        with ThreadPoolExecutor(3) as pool:
            twice = [pool.submit(one.send, first), pool.submit(one.send, first)]
            while all(not receipt.done() for receipt in twice):
                pass
            pool.submit(other.send, too)
        reasons = sorted(receipt.result().reason for receipt in twice)
        assert reasons == [pb.Receipt.REASON_COUNTED, DUPLICATE]

        # in the next round: as it was, and with its header moved to that round
        second = one.opened()
        as_it_was = header_of(first) | {"signature": signature}
        assert one.send(second, payload, **as_it_was).reason == LATE
        assert one.send(second, payload, signature=signature).reason == SIGNATURE
        finish(one, second, other, other.opened())

        # after a restart of the coordinator: sessions and terms are new
        swarm.processes[-1].tell(signal.SIGTERM)
        ended(swarm.processes[-1])
        swarm.coordinator(None, "--wait-for", "2", "--evaluate-every", "1000")
        with pytest.raises(grpc.RpcError) as gone:
            one.send(second, payload, **as_it_was)
        assert gone.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
        back, too_back = Contributor(swarm, 1, one.raw.key), Contributor(swarm, 2, other.raw.key)
        third, too = back.opened(), too_back.opened()
        assert third.term == first.term + 1
        assert back.send(third, payload, **as_it_was).reason == LATE
        assert back.send(third, payload, signature=signature).reason == SIGNATURE
        counted = back.raw.name(first, payload)
        receipt = back.raw.stub.AskReceipt(pb.ReceiptRequest(contribution=counted), timeout=30)
        assert (receipt.outcome, receipt.step) == (pb.Receipt.OUTCOME_COUNTED, 0)
        finish(back, third, too_back, too)
        status = swarm.status(fingerprint=True)
        assert (status.step, status.fingerprint) == expected
        assert "signatures: 3 of rows and 6 of contributions are correct" in swarm.verify()
