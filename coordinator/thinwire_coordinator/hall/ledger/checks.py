"""Checks of a state directory: its blobs, its length, its first state, and all signatures.

The sizes of blobs are compared without reading the files. Nodes check the hash of each blob that they fetch, so one
that is damaged here fails on every volunteer's machine, and looks like a fault there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from thinwire_coordinator.hall.ledger.signatures import Signatures
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.errors import Damaged, LedgerError, ReplicaError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.task import task_of
from thinwire_proto.wire.rows import Counted, Row, genesis


def check_blobs(state: RunState) -> tuple[int, list[Path]]:
    """Return how many blobs have the right size, and those that are missing. Raises Damaged if one has another size."""
    right, missing = 0, []
    for blob in dict.fromkeys([*task_of(state.contract.model).blobs(), *state.data.blobs()]):
        path = state.blobs.folder / blob.hash
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            missing.append(path)
            continue
        if size != blob.size:
            raise Damaged(f"{path} is damaged: it has {size:,} bytes, and must have {blob.size:,}", restore="it")
        right += 1
    return right, missing


def check_complete(state: RunState) -> None:
    """Raise Damaged if a blob is missing or has another size, so that the coordinator cannot serve it."""
    _, missing = check_blobs(state)
    if len(missing) == 1:
        raise Damaged(f"{missing[0]} is missing", restore="it")
    if missing:
        raise Damaged(f"{missing[0]} and {len(missing) - 1:,} other blobs are missing", restore="them")


def no_snapshot(state: RunState, step: int | None = None) -> Damaged:
    """The error of a run that has no snapshot, not even one of the first state; or none that leads to a step."""
    if step is not None and (why := state.why_not_kept(step)):
        return Damaged(f"{state.folder}: {why}", restore="an older one")
    text = f"{state.folder}: no snapshot can be used: none exists"
    if bad := sorted(path.name for path in (state.folder / "snapshots").glob("*.bad")):
        text += f" beside {', '.join(bad)}, set aside as damaged"
    return Damaged(text, restore="one")


def check_length(state: RunState) -> None:
    """Raise LedgerError if the ledger has lost its last rows: that is, if a snapshot is newer than the last row."""
    step, newest = state.ledger.step, max(state.snapshot_steps(), default=0)
    if newest > step:
        raise Damaged(
            f"step {step}: the ledger ends here, but a snapshot of step {newest} exists: the last rows were lost",
            step,
        )


def check_follows(row: Row, step: int, head: bytes | None) -> None:
    """Raise Damaged unless a row is of `step` and names the row before it. head: that row's hash; None: not known."""
    if row.step != step:
        raise Damaged(f"step {step}: the row is missing; the next row is of step {row.step}", step)
    if head is not None and row.previous != head:
        raise Damaged(f"step {step}: the row does not follow the previous row", step)


def first_state(state: RunState, say: Callable[[str], None]) -> Replica:
    """The first state, checked against the start of the ledger. say: receives a line about it. Raises Damaged."""
    try:
        replica = state.load_snapshot(0)
    except ReplicaError as error:
        raise Damaged(f"step 0: {error}", 0, restore="the snapshot") from None
    if replica.head != genesis(state.contract.hash, replica.state_hash()):
        raise Damaged("step 0: the first state does not match the start of the ledger", 0, restore="its snapshot")
    if (lineage := state.contract.lineage) is not None:
        if f"{replica.model_fingerprint():016x}" != lineage.fingerprint:
            raise Damaged("step 0: the first state is not the one that the contract says it is of another run", 0)
        say(f"goes on from step {lineage.step} of the run with contract {lineage.contract}, and has its parameters")
    say(f"first state: {replica.layout.parameters:,} parameters, genesis {replica.head.hex()}")
    return replica


StatementOf = Callable[[Counted], bytes]


def contribution_statement(entry: Counted) -> bytes:
    return statements.contribution(entry.contribution, entry.samples)


class SignatureCheck:
    """Checks row after row, and counts the signatures."""

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self._coordinator = signatures.coordinator
        self._is_compared = False
        self._key_of = cache(signatures.key_of)
        self.rows = self.contributions = 0

    def check_key(self, fingerprint: bytes) -> None:
        """Raise LedgerError if the coordinator's key is another than the one with this fingerprint."""
        found = "no key" if self._coordinator is None else f"the key {self._coordinator.fingerprint.hex()}"
        if self._coordinator is None or self._coordinator.fingerprint != fingerprint:
            raise LedgerError(
                f"the rows are signed by {found}, but the invite names {fingerprint.hex()}: this is not the ledger of "
                "the run that the invite is for"
            )
        self._is_compared = True

    def check(self, row: Row, statement_of: StatementOf = contribution_statement) -> None:
        """Check a row's signature and those of its contributions. Raises Damaged with the step and the node.

        statement_of: what a node has signed."""
        signature = self._signatures.of_row(row.step)
        if self._coordinator is None or not self._coordinator.verifies(signature, statements.row(row.hash)):
            raise Damaged(f"step {row.step}: the row's signature is not that of the coordinator's key", row.step)
        self.rows += 1
        for entry in row.counted:
            self._check_contribution(row.step, entry, statement_of)

    def _check_contribution(self, step: int, entry: Counted, statement_of: StatementOf) -> None:
        signature, what = self._signatures.of_contribution(entry.contribution), f"step {step}: node {entry.node}"
        if signature is None:
            raise Damaged(f"{what}: its contribution has no signature", step)
        key: PublicKey | None = self._key_of(entry.node)
        if key is None:
            raise Damaged(f"{what}: its public key is missing", step)
        if key.node_id != entry.node:
            raise Damaged(f"{what}: the public key on record is that of node {key.node_id}", step)
        if not key.verifies(signature, statement_of(entry)):
            raise Damaged(f"{what}: the signature is not that of its contribution", step)
        self.contributions += 1

    def report(self) -> list[str]:
        """The result in words, if no check has failed."""
        lines = []
        if self._coordinator is not None:
            compared = ", which is the one that the invite names" if self._is_compared else ""
            lines.append(f"coordinator's key: {self._coordinator.fingerprint.hex()}{compared}")
        lines.append(f"signatures: {self.rows:,} of rows and {self.contributions:,} of contributions are correct")
        return lines
