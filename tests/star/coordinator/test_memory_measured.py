"""The figures of the memory bound that the coordinator prints, against what its own objects take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from support.live_tensors import LiveTensors
from support.small import random_replica, small_contract, small_corpus
from thinwire_coordinator.hall.events import Cause
from thinwire_coordinator.star.memory import (
    DECODED_BYTES,
    DECODED_RANKED_BYTES,
    MERGED_BYTES,
    MERGED_RANKED_BYTES,
    _coding_bytes,
    audit_activation_bytes,
    audit_bytes,
    comparing_bytes,
    star_memory,
    sums_bytes,
)
from thinwire_coordinator.star.trust.audit import REFERENCES_MAX, Subject
from thinwire_coordinator.star.trust.auditing import Auditor
from thinwire_coordinator.star.trust.ballots import Ballot, Secret, digest_of
from thinwire_coordinator.star.trust.comparison import Comparer
from thinwire_coordinator.star.trust.evidence import Audited, RoundEvidence, Shown, because
from thinwire_coordinator.star.trust.standing import Standing
from thinwire_proto.contract import Contract, Parameter
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, Votes
from thinwire_proto.task import NO_BLOBS
from thinwire_proto.wire.codec import (
    decode_votes,
    encode_update,
    encode_votes,
)


class Memory:
    """Bytes that Python and numpy hold beyond those at the beginning."""

    @property
    def held(self) -> int:
        return tracemalloc.get_traced_memory()[0] - self._before

    @property
    def peak(self) -> int:
        return tracemalloc.get_traced_memory()[1] - self._before

    def begin(self) -> None:
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]


@contextmanager
def measured() -> Iterator[Memory]:
    tracemalloc.start()
    memory = Memory()
    memory.begin()
    yield memory
    tracemalloc.stop()


def ballots(nodes: int, votes: int, components: int, seed: int = 0) -> list[Ballot]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(nodes):
        chosen = np.sort(rng.choice(components, votes, replace=False))
        positive = rng.random(votes) < 0.5
        found.append(Ballot(f"{number:032x}", chosen, positive, True, digest_of(chosen, positive)))
    return found


@pytest.mark.parametrize(("nodes", "votes"), [(4, 100_000), (64, 4_000), (1024, 8)])
def test_comparing_a_round(nodes: int, votes: int) -> None:
    """Many votes, and many nodes: what a vote takes and what a pair takes are tested apart."""
    components = 2 * votes
    comparer = Comparer(Secret(1))
    comparer.compare(ballots(4, votes, components, seed=1), lambda node: 1.0)  # whatever is made once
    round_ = ballots(nodes, votes, components)
    with measured() as memory:
        comparer.compare(round_, lambda node: 1.0)
        assert memory.peak <= comparing_bytes(nodes, nodes * votes, nodes * components)


def suspected(number: int) -> Standing:
    """A node that every test suspects, with the longest words and numbers of a long run."""
    node = f"{number:032x}"
    found = Standing(node, f"2001:db8:{number:04x}::/56", 100_000 + number, vouched=1.5 + number, audits=1000 + number)
    found.bans, found.pardoned, found.banned_until, found.seen = 500 + number, 900 + number, 1.79e9 + number, 1 << 20
    audits = (Audited(node, -12.5),)
    evidence = RoundEvidence((1 << 20) + number, (Shown(node, -12.5, node),), audits=audits)
    for cause in Cause:
        if cause not in (Cause.SILENCE, Cause.HELD_OUT):
            found.evidence[cause] = 18.4 + number
            found.suspected[cause] = because(cause, node, evidence, 12.5)
    return found


@pytest.mark.parametrize("context", [16, 128])
def test_an_audit(context: int) -> None:
    contract = small_contract(model={"width": 128, "layers": 2, "heads": 2, "hidden": 352, "context": context})
    replica, rng = random_replica(contract), np.random.default_rng(0)
    layout, votes = replica.layout, 5000
    first, second, *references = ballots(REFERENCES_MAX + 2, votes, layout.components)
    own, other = (Subject(one, tuple(int(place) for place in rng.choice(50, 8))) for one in (first, second))
    with LiveTensors():  # whatever is imported and made once
        Auditor(contract, CorpusText(small_corpus(), contract), NO_BLOBS).audit(replica, own, other, references)
    auditor = Auditor(contract, CorpusText(small_corpus(), contract), NO_BLOBS)
    with measured() as memory, LiveTensors() as tensors:
        assert len(auditor.audit(replica.clone(), own, other, references)) == 2
        taken = tensors.peak_bytes + memory.peak
    bound = audit_bytes(layout, votes) + audit_activation_bytes(contract)
    assert 0.5 * bound < taken <= bound
    printed = star_memory(contract, activations=audit_activation_bytes(contract)).named["audits"]
    assert printed >= audit_bytes(layout, layout.selected_max(contract.demo.k)) + audit_activation_bytes(contract)


@pytest.mark.parametrize(("per_tile", "largest"), [(8, 1), (20, 1), (24, 1), (96, 1), (320, 3), (320, 2000)])
def test_encoding_and_decoding(per_tile: int, largest: int) -> None:
    """Few components of a tile are ranked, and many are gaps."""
    layout, rng = TileLayout((Parameter(name="t", shape=(2048, 2048)),)), np.random.default_rng(0)
    chosen = [np.sort(rng.choice(4096, per_tile, replace=False)) + 4096 * tile for tile in range(layout.tiles)]
    components, count = np.concatenate(chosen), layout.tiles * per_tile
    merged = Merged(components, rng.integers(1, largest + 1, count).astype(np.int16))
    update, votes = Update(0, 0.5, 1.0, merged), Votes(components, merged.values > 0)
    with measured() as memory:
        encode_update(update, layout)
        taken = memory.peak + 10 * count
    assert taken <= _coding_bytes(layout, count, MERGED_BYTES, MERGED_RANKED_BYTES)
    sent = encode_votes(votes, layout)
    with measured() as memory:
        decode_votes(sent, layout, per_tile)
        assert memory.peak <= _coding_bytes(layout, count, DECODED_BYTES, DECODED_RANKED_BYTES)


def sign_votes(layout: TileLayout) -> Votes:
    return Votes(np.arange(0, layout.components, 64), np.ones(len(range(0, layout.components, 64)), np.bool_))


def tile_votes(layout: TileLayout) -> Votes:
    components = np.cumsum([0, *[4096] * layout.matrix_tiles, *[64] * layout.vector_tiles])[:-1]
    return Votes(components, np.ones(layout.tiles, np.bool_), np.full(layout.tiles, 40, np.uint8))


@pytest.mark.parametrize("shapes", [((256, 256), (64,)), ((4096, 8), (8, 4096)), ((64,),) * 512])
@pytest.mark.parametrize(("sections", "votes"), [({}, sign_votes), ({"demo": {"magnitude": "tile"}}, tile_votes)])
def test_the_sums_of_a_round(
    shapes: tuple[tuple[int, ...], ...], sections: dict[str, Any], votes: Callable[[TileLayout], Votes]
) -> None:
    """Of wide matrices, of an adapter, which is mostly padding, and of vectors."""
    parameters = tuple(Parameter(name=f"t{number}", shape=shape) for number, shape in enumerate(shapes))
    contract: Contract = small_contract(**sections).model_copy(update={"parameters": parameters})
    layout = TileLayout(parameters)
    given = votes(layout)
    with measured() as memory:
        merger = merger_of(contract, layout, 0)
        merger.add(given, 1)
        assert memory.held <= sums_bytes(contract) + (16 << 10)
        assert memory.held >= 0.9 * sums_bytes(contract)
