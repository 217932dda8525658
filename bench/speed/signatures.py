"""Cost of the signatures of a round, in time and bytes, beside the work and the bytes of the same round.

The round is that of a model of 10M parameters and 16 nodes, with the default k: small payloads, so that the share of
the signatures is large. Forward, backward and the compression of the momentum are not in the baseline. The target is a
share of all bytes, and of the round's length; for `verify`, of the replay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

from bench.speed.row import BenchRow
from bench.speed.sizes import contribution_bytes, update_bytes
from bench.speed.synthetic import contract_of, model_parameters, uniform_votes
from bench.speed.timing import interleaved, threads
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SIGNATURE_BYTES, PublicKey, SecretKey
from thinwire_proto.models import PRESETS
from thinwire_proto.wire.codec import decode_update, decode_votes, encode_update, encode_votes
from thinwire_proto.wire.rows import contribution_hash

TOPIC = "signatures of a round"
MODEL, NODES, SAMPLES, STEP = "byte-10m", 16, 8, 1000
SHARE_WANTED = 0.02
FIELD_BYTES = 2
"""Of a field of 64 bytes in protobuf: its tag and its length."""
MILLI = 1e3
VERIFY = "`verify`"


class SignedRound:
    """The payloads of a round, and the work that its ends do for it, with and without signatures."""

    def __init__(self, parameters: tuple[Parameter, ...], nodes: int) -> None:
        self._contract = contract_of(parameters, DemoSpec())
        self.length_s = self._contract.round.length_s
        self._layout = layout_of(parameters)
        self._k = self._contract.demo.k
        self._votes = [uniform_votes(self._layout, self._k, seed) for seed in range(nodes)]
        self.payloads = [encode_votes(votes, self._layout) for votes in self._votes]
        self.body = self.merge()
        self._coordinator = SecretKey()
        self._row = statements.row(hashlib.sha256(self.body).digest())
        self._row_signature = self._coordinator.sign(self._row)
        self._key = SecretKey()
        self._signed: list[tuple[PublicKey, bytes, bytes]] = []
        for payload in self.payloads:
            key, statement = SecretKey(), self._statement(payload)
            self._signed.append((key.public, key.sign(statement), statement))
        tensors = {parameter.name: torch.randn(parameter.shape) for parameter in parameters}
        self._replica = Replica(self._contract, tensors, STEP, b"")

    def _statement(self, payload: bytes) -> bytes:
        return statements.contribution(contribution_hash(bytes(32), 3, STEP, "0" * 32, payload), SAMPLES)

    def merge(self) -> bytes:
        """Decode and merge the contributions and encode the update, as the coordinator does."""
        merger = merger_of(self._contract, self._layout, STEP)
        for payload in self.payloads:
            votes = decode_votes(payload, self._layout, self._k, self._contract.demo.magnitude)
            merger.add(votes, self._contract.round.weight_max)
        update = Update(STEP, learning_rate(self._contract.schedule, 100), 1.0, merger.merged())
        return encode_update(update, self._layout)

    def exchange(self) -> None:
        """Encode a contribution and decode the update, as each node does."""
        encode_votes(self._votes[0], self._layout)
        decode_update(self.body, self._layout, self._contract.demo.magnitude)

    def replay(self) -> None:
        """Check and apply the update, as `verify` does."""
        self._replica.step = STEP
        self._replica.fingerprint(1)
        self._replica.apply(decode_update(self.body, self._layout, self._contract.demo.magnitude), b"")

    def signatures_of_a_node(self) -> None:
        self._key.sign(self._signed[0][2])
        assert self._coordinator.public.verifies(self._row_signature, self._row)

    def signatures_of_the_coordinator(self) -> None:
        assert all(key.verifies(signature, statement) for key, signature, statement in self._signed)
        self._coordinator.sign(self._row)

    def signatures_of_verify(self) -> None:
        assert self._coordinator.public.verifies(self._row_signature, self._row)
        assert all(key.verifies(signature, statement) for key, signature, statement in self._signed)


def time_rows(found: SignedRound) -> Iterator[BenchRow]:
    for what, signatures, baseline, work in (
        ("a node: sign, verify the row", found.signatures_of_a_node, "encode, decode", found.exchange),
        (
            f"the coordinator: verify {NODES}, sign the row",
            found.signatures_of_the_coordinator,
            "decode, merge, encode",
            found.merge,
        ),
        (f"{VERIFY}: {NODES} and the row", found.signatures_of_verify, "replay of the update", found.replay),
    ):
        ours_s, baseline_s = interleaved(signatures, work)
        wanted = SHARE_WANTED * MILLI * (baseline_s if what.startswith(VERIFY) else found.length_s)
        yield BenchRow(TOPIC, what, ours_s * MILLI, baseline_s * MILLI, "ms", baseline, wanted=wanted)


def byte_rows(found: SignedRound) -> Iterator[BenchRow]:
    signature_bytes = SIGNATURE_BYTES + FIELD_BYTES
    for what, size in (
        ("up, for each node", contribution_bytes(found.payloads[0])),
        ("down, for each node", update_bytes(found.body, NODES)),
    ):
        whole = size / 1000
        yield BenchRow(TOPIC, what, signature_bytes / 1000, whole, "kB", "all bytes", wanted=SHARE_WANTED * whole)


def rows() -> Iterator[BenchRow]:
    found = SignedRound(model_parameters(PRESETS[MODEL]), NODES)
    with threads(1):
        yield from time_rows(found)
    yield from byte_rows(found)
