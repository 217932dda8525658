"""Replays all updates of a star run, and checks every hash, fingerprint, snapshot and signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from thinwire_coordinator.hall.ledger.checks import SignatureCheck, check_follows, first_state, no_snapshot
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.star.replay import not_kept, replay
from thinwire_proto.errors import Damaged, ReplicaError
from thinwire_proto.exact.amendments import Stretch, rewinds
from thinwire_proto.exact.replica import Replica

PROGRESS_STEPS = 1000


def verify_updates(state: RunState, say: Callable[[str], None], signatures: SignatureCheck) -> None:
    """Replay the run and check it. Raises LedgerError at the first failure."""
    replica, start = _oldest_state(state, say, signatures)
    snapshots = set(state.snapshot_steps()) - {replica.step}
    contributions = body_bytes = updates = 0
    checked = 1
    earlier = _Earlier(rewinds(state.contract))
    head = state.ledger.step
    for first, last in replayed_stretches(earlier.back, replica.step, head):
        if replica.step < first:
            _pass_over(state, replica, first, signatures, say)
            replica.go_back(earlier.replica(earlier.back[first - 1]), state.ledger.row(first - 1).hash)
        earlier.keep(replica)
        for row in replay(state, replica, None if last == head else last, earlier.replica):
            earlier.keep(replica)
            signatures.check(row)
            updates += 1
            contributions += len(row.counted)
            body_bytes += row.body_bytes
            if replica.step in snapshots:
                checked += _check_snapshot(state, replica)
            if replica.step % PROGRESS_STEPS == 0:
                say(f"step {replica.step}: no errors so far")
    say(
        f"replayed {updates} updates from {start}: each row's hash, the chain, each body's hash and the "
        f"fingerprint before each update are correct ({contributions:,} contributions, {body_bytes:,} bytes of "
        f"bodies, {checked} snapshots)"
    )
    for line in signatures.report():
        say(line)
    for amendment in state.contract.amendments:
        say(f"amended from step {amendment.step} on: {amendment.in_words}")
    say(f"step {replica.step}: head {replica.head.hex()}, fingerprint {replica.model_fingerprint():016x}")


def replayed_stretches(back: Mapping[int, int], begin: int, end: int) -> list[Stretch]:
    """The steps whose parameters a replay from `begin` to `end` computes. It lacks those that follow from steps before
    `begin`: the run went back to these when they were kept, and has gone back to a later one since.

    back: see `rewinds`."""
    found: list[Stretch] = []
    first: int | None = begin
    for at, to in back.items():
        is_known = (first is not None and first <= to) or any(one.first <= to <= one.last for one in found)
        if at >= begin and first is not None and not is_known:
            found.append(Stretch(first, at))
            first = None
        elif at >= begin and first is None and is_known:
            first = at + 1
    return found if first is None else [*found, Stretch(first, end)]


class _Earlier:
    """The replicas that later rows go back to, during a replay. back: see `rewinds`."""

    def __init__(self, back: Mapping[int, int]) -> None:
        self.back = back
        self._kept: dict[int, Replica] = {}

    def keep(self, replica: Replica) -> None:
        """Keep a copy if a later row goes back to this step, and forget what no later one does."""
        later = {to for at, to in self.back.items() if at >= replica.step}
        if replica.step in later:
            self._kept[replica.step] = replica.clone()
        for step in self._kept.keys() - later:
            del self._kept[step]

    def replica(self, step: int) -> Replica:
        return self._kept.get(step) or not_kept(step)


def _pass_over(
    state: RunState, replica: Replica, stop: int, signatures: SignatureCheck, say: Callable[[str], None]
) -> None:
    """Check rows whose parameters cannot be computed, up to the step `stop`, and the hashes of their bodies. Leaves the
    replica before the row of the step before `stop`, which goes back."""
    began, to = replica.step, rewinds(state.contract)[replica.step]
    say(
        f"steps {began + 1} to {stop - 1} were given up, and follow from step {to}, which --keep has deleted: for "
        "them, only each row's hash, the chain, the bodies' hashes and the signatures are checked"
    )
    for row in state.ledger.rows(began, stop):
        state.update(row)
    _, head = _check_chain(state, began, replica.head, stop, signatures)
    assert head is not None
    replica.step, replica.head = stop - 1, state.ledger.row(stop - 1).previous


def _oldest_state(state: RunState, say: Callable[[str], None], signatures: SignatureCheck) -> tuple[Replica, str]:
    """Return the state that the replay starts from, and its name in words.

    The rows before it are checked first. That takes long, and a running coordinator may delete the snapshot meanwhile.
    The replay then starts from the one that is the oldest by then."""
    replica, checked, head = None, 0, None
    while replica is None:
        steps = state.snapshots_before(state.ledger.step)
        if not steps:
            raise no_snapshot(state)
        step = steps[0]
        if step == 0:
            return first_state(state, say), "the first state"
        checked, head = _check_chain(state, checked, head, step, signatures)
        try:
            replica = state.load_own_snapshot(step)
        except ReplicaError as error:
            if step in state.snapshot_steps():
                raise Damaged(f"step {step}: {error}", step, restore="the snapshot") from None
    say(
        f"the first state was deleted by --keep: for the {step} updates before step {step}, only each row's hash, "
        "the chain and the signatures are checked"
    )
    return replica, f"the snapshot of step {step}, the oldest that is kept"


def _check_chain(
    state: RunState, step: int, head: bytes | None, stop: int, signatures: SignatureCheck
) -> tuple[int, bytes | None]:
    """Check rows whose updates are deleted: each row's hash, that it names the previous row, its signatures.

    step: the first of them. head: the hash of the row before it. Returns both for the rows that follow."""
    for row in state.ledger.rows(step, stop):
        check_follows(row, step, head)
        signatures.check(row)
        step, head = step + 1, row.hash
    return step, head


def _check_snapshot(state: RunState, replica: Replica) -> bool:
    """Compare a snapshot with the replica. Return False if a running coordinator has deleted it meanwhile."""
    if not state.snapshot_path(replica.step).exists():
        return False
    try:
        snapshot = state.load_snapshot(replica.step)
    except ReplicaError as error:
        raise Damaged(f"step {replica.step}: {error}", replica.step, restore="the snapshot") from None
    if snapshot.head != replica.head or snapshot.state_hash() != replica.state_hash():
        text = f"step {replica.step}: the snapshot differs from the replayed state"
        raise Damaged(text, replica.step, restore="the snapshot")
    return True
