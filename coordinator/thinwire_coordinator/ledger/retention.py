"""What is kept of snapshots and bodies, and what goes. Rows are never deleted, so the chain can always be checked.

The rule. Without a number, every body is kept, and of the snapshots the oldest (the first state) and the newest few.
With one, the newest N snapshots, and every body since the oldest of them. What is kept always leads from the oldest
snapshot to the head, which is what `verify`, catching up and recovery need.

The order. A turn deletes first the bodies that are older than the oldest snapshot there is, and then the snapshots that
are too many, oldest first. So whatever a crash interrupts, the oldest snapshot that is left has all bodies after it;
a crash leaves more than the rule asks for, never less, and the next turn takes it away. No turn deletes a snapshot
before the one that becomes the oldest has been read back whole.

The margin. Bodies go one turn after their snapshot, so the disk holds the updates of at least one more interval than
is promised. `State.snapshot_is_lighter` sends whoever joins with a step older than the oldest snapshot to the newest
one; everybody else has a whole interval, about a snapshot's weight in updates, to get ahead of the deletion. Who is
overtaken all the same receives more slowly than the swarm seals, and could never have caught up; its stream of updates
ends with `NotKept`, and joining again sends it to the snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire_common.files import sync_folder
from thinwire_common.logs import tell
from thinwire_coordinator.ledger.state_directory import State
from thinwire_proto.errors import LedgerError, ReplicaError

log = logging.getLogger("thinwire.coordinator")

SNAPSHOTS_KEPT = 3
"""Newest snapshots that are kept beside the first state if no number is given: one to serve, and two behind it should
that one be torn."""


class NotKept(LedgerError):
    """An update that was asked for is older than what is kept: a snapshot leads past it."""


def surplus_snapshots(steps: Sequence[int], keep: int | None) -> list[int]:
    """Which of the snapshots that are there (`steps`, ascending) are too many; oldest first."""
    kept = set(steps[-keep:] if keep is not None else [*steps[:1], *steps[-SNAPSHOTS_KEPT:]])
    return [step for step in steps if step not in kept]


@dataclass(frozen=True)
class Sorted:
    """The bodies that are there, and those that are not, by what the rows say of them."""

    unnamed: set[str]
    """By no row."""
    outlived: list[str]
    """Of updates before the oldest snapshot, oldest first."""
    missing: list[int]
    """Steps since the oldest snapshot whose bodies are not there, ascending."""


class Retention:
    """Deletes what the rule does not keep. One thread at a time may use it."""

    def __init__(self, state: State, keep: int | None) -> None:
        self._state = state
        self._keep = keep
        self._bodies_from = 0
        """No body of a step before this one is left."""
        self._stands_still = False
        """The ledger does not hold together: what seems to be too much may be what it lost."""

    def sweep(self) -> None:
        """At start: remove what a crash left behind, and then what the rule does not keep.

        These are files under passing names; bodies older than the oldest snapshot; and the body of an update whose row
        was not written any more. There can be one of these, since a start removes it before the next is written. More
        of them say that the ledger has lost rows: then they are all kept, for the day it is restored.
        """
        state = self._state
        snapshots = state.folder / "snapshots"
        sync_folder(snapshots)  # what is gone from it stays gone, before bodies follow
        # safetensors writes under a passing name of its own, and then gives the file the one that it was told
        for passing in [*state.folder.glob("*.part"), *snapshots.glob("*.part"), *snapshots.glob(".tmp*")]:
            passing.unlink(missing_ok=True)
        state.bodies.remove_passing()
        state.bodies.check_writable()
        oldest = state.snapshot_steps()[0]
        try:
            found = _sort_bodies(state, oldest)
        except LedgerError as error:
            text = f"{error}; nothing is deleted from {state.folder} until that is mended"
            tell(log, logging.WARNING, "coordinator.deletion_suspended", text, folder=str(state.folder))
            self._stands_still = True
            return
        if found.missing:
            _say_missing(state, found.missing, oldest)
        if len(found.unnamed) > 1:
            text = f"{len(found.unnamed)} bodies belong to no row: the ledger may have lost rows; they stay"
            tell(log, logging.WARNING, "coordinator.bodies_unnamed", text, bodies=len(found.unnamed))
        else:
            state.bodies.remove(found.unnamed)
        state.bodies.remove(found.outlived)
        self._bodies_from = oldest
        self.trim()

    def trim(self) -> None:
        """After a snapshot was written: delete what is not kept any more. Raises OSError where the disk fails."""
        if self._stands_still:
            return
        state = self._state
        steps = state.snapshot_steps()
        surplus = surplus_snapshots(steps, self._keep)
        state.bodies.remove(row.body_hash.hex() for row in state.upkeep_ledger.rows(self._bodies_from, steps[0]))
        self._bodies_from = max(self._bodies_from, steps[0])
        oldest = min(set(steps) - set(surplus))
        if oldest != steps[0] and not self._is_sound(oldest):
            return
        for step in surplus:
            state.snapshot_path(step).unlink(missing_ok=True)
        if surplus:
            sync_folder(state.folder / "snapshots")

    def _is_sound(self, step: int) -> bool:
        """Whether a snapshot can be what everything else is replayed from."""
        try:
            self._state.load_own_snapshot(step)
        except (ReplicaError, LedgerError) as error:
            text = f"{error}; the snapshots before it are kept"
            tell(log, logging.WARNING, "coordinator.snapshot_unsound", text, step=step)
            return False
        return True


def _sort_bodies(state: State, oldest: int) -> Sorted:
    """Raises LedgerError if a row cannot be read."""
    found = Sorted(state.bodies.names(), [], [])
    for row in state.upkeep_ledger.rows():
        name = row.body_hash.hex()
        if name not in found.unnamed:
            if row.step >= oldest:
                found.missing.append(row.step)
        elif row.step < oldest:
            found.outlived.append(name)
        found.unnamed.discard(name)
    return found


def _say_missing(state: State, missing: list[int], oldest: int) -> None:
    """Raises LedgerError if none is there: then this is not the place where they lie."""
    place = state.bodies.place
    if len(missing) == state.upkeep_ledger.step - oldest:
        raise LedgerError(
            f"step {oldest}: its body and all after it are missing from {place}: mount it, or restore what it held",
            oldest,
        )
    text = f"{place}: the bodies of {len(missing)} updates are missing, first that of step {missing[0]}"
    tell(log, logging.WARNING, "coordinator.bodies_missing", text, place=place, bodies=len(missing), step=missing[0])
