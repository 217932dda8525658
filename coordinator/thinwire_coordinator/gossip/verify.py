"""`verify` of a gossip run: the chain of its rows, all signatures, iterations, and the final mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thinwire_coordinator.gossip.ledger_rows import KIND, MEAN, check_goes_on, decode_deposits, state_at_head
from thinwire_coordinator.gossip.measurements import CONSENSUS, SketchCheck, sketches_named_by
from thinwire_coordinator.hall.ledger.checks import SignatureCheck, first_state
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.contract.amendment import parse_amendment
from thinwire_proto.errors import Damaged, LedgerError, PayloadError
from thinwire_proto.exact.amendments import amendments_in
from thinwire_proto.exact.replica import Replica
from thinwire_proto.gossip.chain import GENESIS
from thinwire_proto.gossip.reports import SignedReport, decode_reports
from thinwire_proto.wire.rows import Counted, Row


class BeatCheck:
    """Checks row after row. first: the first state."""

    def __init__(self, state: RunState, first: Replica, signatures: SignatureCheck) -> None:
        self._state = state
        self._first = first
        self._signatures = signatures
        self._iterations: dict[str, int] = {}
        self._before: Row | None = None
        self.beats = self.reports = self.begun_anew = 0
        self.sketches = SketchCheck()
        self._bodies = state.bodies.names()

    def check(self, row: Row) -> None:
        """Raises Damaged, or LedgerError with the step."""
        before, reported = self._before, max(self._iterations.values(), default=0)
        check_goes_on(row, before, self._first.head if before is None else before.hash)
        try:
            body = self._state.bodies.get(row.body_hash, row.body_bytes)
            ends = row.extras.get(KIND) == MEAN
            statements = self._deposits(row, body) if ends else self._reports(row, body)
        except (PayloadError, LedgerError, OSError) as error:
            raise LedgerError(f"step {row.step}: {error}", row.step) from None
        self._signatures.check(row, lambda entry: statements[entry])
        if not ends and self._first.fingerprint(row.nonce) != row.fingerprint:
            raise Damaged(f"step {row.step}: the fingerprint is not that of the first state", row.step)
        if CONSENSUS in row.extras:
            self._check_consensus(row)
        self._check_amendments(row, reported)
        self._before = row
        self.beats += not ends

    def _reports(self, row: Row, body: bytes) -> dict[Counted, bytes]:
        """The statement of each counted report. Raises PayloadError."""
        statements, reports = {}, decode_reports(body)
        for entry, signed in zip(row.counted, _as_many(reports, row), strict=True):
            if (entry.node, entry.contribution) != (signed.node, signed.hash):
                raise PayloadError(f"node {entry.node}: the row names another report than the body has")
            if entry.samples > signed.report.samples:
                raise PayloadError(f"node {entry.node}: more samples are counted than it has reported")
            self._go_on(signed)
            self.sketches.report(signed.node, signed.report)
            statements[entry] = signed.statement
        self.reports += len(reports)
        return statements

    def _check_consensus(self, row: Row) -> None:
        plain = row.extras[CONSENSUS]
        try:
            body = None
            if sketches_named_by(row) in self._bodies:
                body = self._state.bodies.get(plain["sketches"], plain["bytes"])
            self.sketches.check(plain, body)
        except (PayloadError, LedgerError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise LedgerError(f"step {row.step}: its disagreement: {error}", row.step) from None

    def _check_amendments(self, row: Row, reported: int) -> None:
        """An amendment holds from an iteration on that no node was past. reported: the furthest one of earlier rows."""
        for amendment in map(parse_amendment, amendments_in(row.extras)):
            if reported > amendment.step:
                raise Damaged(
                    f"step {row.step}: an amendment holds from iteration {amendment.step} on, but a node had done "
                    f"{reported} by then",
                    row.step,
                )

    def _go_on(self, signed: SignedReport) -> None:
        before, now = self._iterations.get(signed.node, 0), signed.report.iteration
        if now == 0 < before and signed.report.head == GENESIS:
            self.begun_anew += 1
        elif now < before:
            raise PayloadError(f"node {signed.node}: its iteration goes back from {before} to {now}")
        self._iterations[signed.node] = now

    def _deposits(self, row: Row, body: bytes) -> dict[Counted, bytes]:
        """The same of the parameters in the final mean."""
        contract, statements = self._state.contract.hash, {}
        for entry, deposited in zip(row.counted, _as_many(decode_deposits(body), row), strict=True):
            if entry != deposited.counted(contract):
                raise PayloadError(f"node {entry.node}: the row names other parameters than the body does")
            if deposited.iteration < self._iterations.get(deposited.node, 0):
                raise PayloadError(f"node {entry.node}: its parameters are older than its reports")
            statements[entry] = deposited.statement(contract)
        return statements


def _as_many(entries: list[Any], row: Row) -> list[Any]:
    if len(entries) != len(row.counted):
        raise PayloadError(f"the row counts {len(row.counted)}, but the body has {len(entries)}")
    return entries


def verify_beats(
    state: RunState,
    say: Callable[[str], None],
    signatures: SignatureCheck,
) -> None:
    """Check the run. Raises LedgerError at the first failure."""
    check = BeatCheck(state, first_state(state, say), signatures)
    for row in state.ledger.rows():
        check.check(row)
    say(
        f"{check.beats} beats with {check.reports:,} reports: each row's hash, the chain, each body's hash and the "
        "fingerprint of the first state are correct, and no node's iteration goes back"
    )
    if count := check.sketches.repeated:
        say(f"{count} measurements of the disagreement: the sketches that the nodes signed give the sealed figures")
    if count := check.sketches.without_body:
        say(f"{count} measurements of the disagreement cannot be repeated: their sketches are not kept here")
    for amendment in state.contract.amendments:
        say(f"amended from iteration {amendment.step} on: {amendment.in_words}")
    if check.begun_anew:
        say(f"{check.begun_anew} times a node that had lost its journal began anew, as it says itself")
    for line in signatures.report():
        say(line)
    head = state_at_head(state)
    if head.step == 0:
        say("the run is not complete: there is no final mean yet")
        return
    nodes = len(state.ledger.row(head.step - 1).counted)
    say(f"the final mean of {nodes} nodes: head {head.head.hex()}, fingerprint {head.model_fingerprint():016x}")
