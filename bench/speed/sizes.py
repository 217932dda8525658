"""Bytes: of a contribution's components, and of a round, up and down, for different numbers of nodes.

Bits a component are those of all messages of the contribution call, including the header and the signature. Bytes of a
round are those that one node sends and receives, including the row of the update and its signature. The baseline is a
ring all-reduce of float32 gradients.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

from bench.speed.row import BITS, BYTES_BY_DEFAULT, BenchRow
from bench.speed.synthetic import MATRIX, contract_of, model_parameters, uniform_votes
from thinwire_proto.all_reduce import ring_bytes
from thinwire_proto.contract import Contract, DemoSpec, Parameter
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.schedule import learning_rate
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout, layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.identity.keys import SIGNATURE_BYTES
from thinwire_proto.models import PRESETS
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import encode_update, encode_votes
from thinwire_proto.wire.parts import split_for_download, split_for_upload
from thinwire_proto.wire.rows import Counted
from thinwire_proto.wire.rows import Row as LedgerRow

KS = (4, 8, 32, 64, 128)
NODES = (1, 2, 4, 8, 16, 32, 64)
K_FIXED = 32
MODEL = "byte-10m"
STEP = 1000
FLOOR_FACTOR = 1.03
OTHER_SYSTEMS = (
    ("reference DeMo", 96.0),
    ("templar", 20.0),
    ("Psyche", 17.0),
)
"""Bits that other systems send for a component: an int64 and a float32; 12 bits and a byte; …"""
POLICIES = {
    BYTES_BY_DEFAULT: DemoSpec(),
    "bytes of a round, k fixed": DemoSpec(k=K_FIXED, update_topk=0),
    "bytes of a round, k and update_topk fixed": DemoSpec(k=K_FIXED, update_topk=2 * K_FIXED),
}
RING = "fp32 ring all-reduce"


def contribution_bytes(payload: bytes) -> int:
    """Bytes of the messages of one contribution call in mid-run, as `thinwire_node.exchange.coordinator.link` makes
    them."""
    header: pb.ContributionHeader | None = pb.ContributionHeader(
        term=3,
        round=1000,
        step=1000,
        base_step=999,
        fingerprint=1 << 63,
        samples=8,
        loss=2.5,
        payload_bytes=len(payload),
        compute_ms=20_000,
        trained_through=1_000_000,
        signature=bytes(SIGNATURE_BYTES),
    )
    whole = 0
    for data in split_for_upload(payload):
        whole += pb.ContributionPart(header=header, data=data).ByteSize()
        header = None
    return whole


def update_bytes(body: bytes, nodes: int) -> int:
    """Bytes of the messages in which a node receives one update, including the row."""
    counted = tuple(Counted(f"{node:032x}", hashlib.sha256(b"%d" % node).digest(), 8, 8) for node in range(nodes))
    row = LedgerRow(1000, 1000, 3, 1 << 63, 1 << 63, hashlib.sha256(body).digest(), len(body), counted, bytes(32))
    row_bytes, head_step, signature, whole = row.canonical(), 1001, bytes(SIGNATURE_BYTES), 0
    for data in split_for_download(body):
        whole += pb.UpdatePart(row=row_bytes, head_step=head_step, signature=signature, data=data).ByteSize()
        row_bytes, head_step, signature = b"", 0, b""
    return whole


def floor_bits(layout: TileLayout, k: int) -> float:
    """Entropy of a uniform component in bits: log2 of the number of choices in each tile, plus one bit for the sign."""
    choices = layout.matrix_tiles * _log2_binomial(MATRIX_COMPONENTS, k)
    choices += layout.vector_tiles * _log2_binomial(VECTOR_COMPONENTS, k)
    return choices / layout.selected_max(k) + 1


def _log2_binomial(size: int, k: int) -> float:
    selected = min(k, size)
    return (math.lgamma(size + 1) - math.lgamma(selected + 1) - math.lgamma(size - selected + 1)) / math.log(2)


def component_bits(parameters: tuple[Parameter, ...], k: int) -> float:
    layout = layout_of(parameters)
    votes = uniform_votes(layout, k, seed=k)
    return 8 * contribution_bytes(encode_votes(votes, layout)) / len(votes)


def bits_rows(
    parameters: tuple[Parameter, ...] = MATRIX,
    model: tuple[Parameter, ...] | None = None,
    numbers: tuple[int, ...] = KS,
) -> Iterator[BenchRow]:
    """Rows of bits a component. model: the parameters of a real model, including vectors; numbers: the values of k."""
    for k in numbers:
        bits, floor = component_bits(parameters, k), floor_bits(layout_of(parameters), k)
        wanted = FLOOR_FACTOR * floor
        yield BenchRow(BITS, f"k = {k}", bits, floor, "bits", "entropy floor", wanted=wanted)
    bits = component_bits(parameters, K_FIXED)
    for name, other_bits in OTHER_SYSTEMS:
        yield BenchRow(BITS, f"k = {K_FIXED}", bits, other_bits, "bits", name)
    model = model or model_parameters(PRESETS[MODEL])
    bits, floor = component_bits(model, K_FIXED), floor_bits(layout_of(model), K_FIXED)
    wanted = FLOOR_FACTOR * floor
    yield BenchRow(
        BITS, f"k = {K_FIXED}, the tensors of {MODEL}", bits, floor, "bits", "its entropy floor", wanted=wanted
    )


def round_bytes(contract: Contract, nodes: int) -> tuple[float, float]:
    """(sent, received) by a node in a round, in bytes a parameter.

    The nodes' components are drawn independently, which gives the largest updates.
    """
    layout = layout_of(contract.parameters)
    k = contract.demo.k
    merger = merger_of(contract, layout, STEP)
    sent = 0
    for node in range(nodes):
        votes = uniform_votes(layout, k, seed=node)
        if node == 0:
            sent = contribution_bytes(encode_votes(votes, layout))
        merger.add(votes, contract.round.weight_max)
    update = Update(STEP, learning_rate(contract.schedule, 100), 1.0, merger.merged())
    body = encode_update(update, layout)
    return sent / layout.parameters, update_bytes(body, nodes) / layout.parameters


def rounds_rows(parameters: tuple[Parameter, ...] = MATRIX, numbers: tuple[int, ...] = NODES) -> Iterator[BenchRow]:
    for topic, demo in POLICIES.items():
        contract = contract_of(parameters, demo)
        for nodes in numbers:
            sent, received = round_bytes(contract, nodes)
            what = f"{nodes} node{'s' if nodes > 1 else ''}, k {demo.k}: ↑{sent:.3g} ↓{received:.3g}"
            yield BenchRow(topic, what, sent + received, ring_bytes(nodes), "B/param", RING)


def rows() -> Iterator[BenchRow]:
    yield from bits_rows()
    yield from rounds_rows()
