"""A coordinator sends the parts of files and updates out of order, or forged rows. A node takes none of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.clocks import CLOCKS
from support.hostile_coordinator import HostileCoordinator, serving
from support.sealed_run import make_run
from thinwire_common.traffic import Traffic
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.star.messages import encode_update_parts
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.port import LinkLost, NotGenuine, Surroundings
from thinwire_node.storage.state import PartialSnapshot
from thinwire_proto.blobs import Blob
from thinwire_proto.errors import PayloadError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.rows import Row

BLOB = Blob("ab" * 32, 6)
FIRST = pb.FilePart(size=6, data=b"abc")
REST = pb.FilePart(data=b"def")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RunState]:
    """A run of two steps."""
    (tmp_path / "run").mkdir()
    make_run(tmp_path / "run", 2)
    opened = open_state(tmp_path / "run")
    yield opened
    opened.close()


@asynccontextmanager
async def sending(call: str, parts: list[Any]) -> AsyncIterator[Link]:
    """A node's link to a coordinator that answers one call with these parts."""
    async with serving(HostileCoordinator(b"", {call: parts})) as hostile:
        link = await Link.open(Surroundings(hostile.address, CLOCKS, Traffic()))
        try:
            yield link
        finally:
            await link.close()


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([FIRST, pb.FilePart(data=b"def", offset=3)], "not in order"),
        ([FIRST, pb.FilePart(data=b"def", size=6)], "not in order"),
        ([FIRST, pb.FilePart(data=b"def", step=1)], "not in order"),
        ([FIRST, pb.FilePart(), REST], "not in order"),
        ([FIRST, FIRST], "not in order"),
        ([pb.FilePart(size=6, offset=3, data=b"def")], "a file begins at byte 3; asked for: 0"),
        ([pb.FilePart(size=1 << 63, offset=(1 << 63) - 1, data=b"d")], "asked for: 0"),
        ([pb.FilePart(size=7, data=b"abc")], "too large: 7 bytes announced"),
        ([FIRST, pb.FilePart(data=b"defg")], "too large"),
        ([REST], "too large: 0 bytes announced, 3 received"),
    ],
)
async def test_parts_out_of_order_are_refused(tmp_path: Path, parts: list[pb.FilePart], why: str) -> None:
    async with sending("Blob", parts) as link:
        with pytest.raises(PayloadError, match=why):
            await link.blob(BLOB, tmp_path / "blob")
    assert not (tmp_path / "blob").exists() or (tmp_path / "blob").stat().st_size <= BLOB.size


async def test_a_snapshot_goes_on_only_if_it_is_the_same(tmp_path: Path, state: RunState) -> None:
    contract, data = state.contract, state.snapshot_path(0).read_bytes()
    begun = tmp_path / "snapshot-4.part"
    begun.write_bytes(data[:10])
    for part, why in (
        (pb.FilePart(size=len(data), step=5, offset=10, data=data[10:]), "of step 5 begins at byte 10"),
        (pb.FilePart(size=len(data), step=4, offset=11, data=data[11:]), "asked for: 0 or 10"),
    ):
        async with sending("Snapshot", [part]) as link:
            with pytest.raises(PayloadError, match=why):
                await link.snapshot(tmp_path, contract, PartialSnapshot(begun, 4, 10))
        assert begun.read_bytes() == data[:10]
    async with sending("Snapshot", [pb.FilePart(size=len(data), step=4, offset=10, data=data[10:])]) as link:
        assert (await link.snapshot(tmp_path, contract, PartialSnapshot(begun, 4, 10))).read_bytes() == data


async def test_a_file_that_ends_early_is_no_file(tmp_path: Path) -> None:
    async with sending("Blob", [FIRST]) as link:
        with pytest.raises(LinkLost, match="broke off after 3 of 6 bytes"):
            await link.blob(BLOB, tmp_path / "blob")


async def test_an_update_is_whole_before_the_next_begins(state: RunState) -> None:
    first, second = list(state.ledger.rows())
    signature = state.ledger.signatures.of_row(0) or b""
    body = state.bodies.get(first.body_hash, first.body_bytes)
    replica, key = state.load_snapshot(0), state.key.public
    (whole,) = encode_update_parts(0, first.canonical(), body, signature).parts(2)
    half = pb.UpdatePart(row=first.canonical(), signature=signature, data=body[:-1])
    other = pb.UpdatePart(row=second.canonical(), data=body[-1:])
    for parts, why in (
        ([half, other], "the update of step 0 is incomplete, and another one begins"),
        ([half, pb.UpdatePart()], "a part is empty"),
        ([half, pb.UpdatePart(data=b"xy")], "more bytes came than"),
        ([pb.UpdatePart(row=replace(first, body_bytes=1 << 62).canonical(), data=body)], "bytes announced"),
    ):
        async with sending("Updates", parts) as link:
            link.coordinator = key
            with pytest.raises(PayloadError, match=why):
                await anext(link.sealed_updates(replica, replica.contract))
    async with sending("Updates", [pb.UpdatePart.FromString(whole)]) as link:
        link.coordinator = key
        assert (await anext(link.sealed_updates(replica, replica.contract))).row == first


Forge = Callable[[RunState, Row, bytes], tuple[Row, bytes]]
"""Makes a row and its signature from the genuine ones."""
FORGERIES: dict[str, Forge] = {
    "of another coordinator": lambda state, row, signature: (row, SecretKey().sign(statements.row(row.hash))),
    "altered": lambda state, row, signature: (replace(row, counted=row.counted[:1]), signature),
    "of another row": lambda state, row, signature: (row, state.ledger.signatures.of_row(0) or b""),
    "of another statement": lambda state, row, signature: (row, state.key.sign(statements.contribution(row.hash, 0))),
    "unsigned": lambda state, row, signature: (row, b""),
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_row_that_is_not_genuine_is_refused_before_its_update_is_applied(state: RunState, forgery: str) -> None:
    parts: list[pb.UpdatePart] = []
    for row in list(state.ledger.rows()):
        body = state.bodies.get(row.body_hash, row.body_bytes)
        genuine = row, state.ledger.signatures.of_row(row.step) or b""
        sent, signature = FORGERIES[forgery](state, *genuine) if row.step else genuine
        parts += map(
            pb.UpdatePart.FromString, encode_update_parts(row.step, sent.canonical(), body, signature).parts(2)
        )
    said = "not signed$" if forgery == "unsigned" else "not signed by this coordinator's key"
    async with sending("Updates", parts) as link:
        link.coordinator = state.key.public
        stream = link.sealed_updates(state.load_snapshot(0), state.contract)
        assert (await anext(stream)).row.step == 0
        with pytest.raises(NotGenuine, match=f"the row of step 1 is {said}"):
            await anext(stream)
