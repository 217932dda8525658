"""Deletes old snapshots and bodies. Rows are never deleted, so the chain can always be checked.

The rule. Without `keep`, all bodies are kept, together with the oldest snapshot (the first state) and the newest few.
With `keep` = N, the newest N snapshots are kept, together with all bodies since the oldest of them. In both cases the
kept bodies lead from the oldest snapshot to the head, as `verify`, catching up and recovery require. Snapshots of steps
that the run has given up by going back are not kept. While it goes back, nothing is deleted: if the process dies after
the row and before the snapshot that follows it, the next one needs what leads to the earlier step.

The order. Each pass first deletes the bodies older than the oldest existing snapshot, and then the surplus snapshots,
oldest first. So after a crash at any point, the oldest remaining snapshot has all bodies after it. A crash leaves too
many files, never too few, and the next pass deletes the rest. A pass deletes snapshots only after it has read back the
one that becomes the oldest.

The margin. Bodies are deleted one pass after their snapshot, so the disk holds the updates of at least one interval
more than promised. `RunState.snapshot_is_lighter` sends a joining node whose step is older than the oldest snapshot to
the newest one. Any other node has a whole interval, about a snapshot's size in updates, to stay ahead of the deletion.
A node that is overtaken anyway receives more slowly than the swarm seals, and could never have caught up. Its stream of
updates ends with `NotKept`; when it joins again, it is sent to the snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from thinwire_common.files import sync_folder
from thinwire_common.logs import tell
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.errors import LedgerError, Locked, ReplicaError
from thinwire_proto.wire.rows import Row

log = logging.getLogger("thinwire.coordinator")

SNAPSHOTS_KEPT = 3
"""Newest snapshots that are kept without `keep`: one to serve, and two older ones in case it is damaged."""


class NotKept(LedgerError):
    """The requested update was deleted for age; a newer snapshot replaces it."""


def surplus_snapshots(steps: Sequence[int], keep: int | None) -> list[int]:
    """Return which of the existing snapshots (`steps`, ascending) to delete, oldest first."""
    kept = set(steps[-keep:] if keep is not None else [*steps[:1], *steps[-SNAPSHOTS_KEPT:]])
    return [step for step in steps if step not in kept]


@dataclass(frozen=True)
class BodyInventory:
    """Existing and missing bodies, compared with the rows."""

    unnamed: set[str]
    """Bodies that no row names."""
    outlived: list[str]
    """Bodies of updates before the oldest snapshot, oldest first."""
    missing: list[int]
    """Steps since the oldest snapshot whose bodies are missing, ascending."""


class Retention:
    """Deletes the files that the rule does not keep. Only one thread at a time may use it.

    named_by: the names of bodies that a row names beside its own."""

    def __init__(
        self, state: RunState, keep: int | None, named_by: Callable[[Row], Iterable[str]] = lambda row: ()
    ) -> None:
        self._state = state
        self._named_by = named_by
        self._keep = keep
        self._bodies_from = 0
        """All bodies of earlier steps are deleted."""
        self._suspended = False
        """Whether deletion is suspended: the ledger is damaged, so files that look surplus may belong to lost rows."""

    def sweep(self) -> None:
        """At start, delete what a crash left behind, and then what the rule does not keep.

        A crash leaves temporary files, bodies older than the oldest snapshot, and the body of an update whose row was
        not written. There can be only one such body, because a start deletes it before the next one is written. More
        than one means that the ledger has lost rows; then all of them are kept until it is restored.
        """
        state = self._state
        snapshots = state.folder / "snapshots"
        sync_folder(snapshots)  # makes deletions of snapshots durable before their bodies are deleted
        # safetensors writes to a temporary file `.tmp*` and then renames it
        for temporary in [*state.folder.glob("*.part"), *snapshots.glob("*.part"), *snapshots.glob(".tmp*")]:
            temporary.unlink(missing_ok=True)
        state.bodies.remove_temporary()
        state.bodies.check_writable()
        oldest = state.snapshot_steps()[0]
        try:
            found = _take_inventory(state, oldest, self._named_by)
        except LedgerError as error:
            text = f"{error}; nothing is deleted from {state.folder} until this is repaired"
            tell(log, logging.WARNING, "coordinator.files_differ", text, place=str(state.folder), reason=str(error))
            self._suspended = True
            return
        if found.missing:
            _warn_missing(state, found.missing, oldest)
        if len(found.unnamed) > 1:
            text = f"{len(found.unnamed)} bodies belong to no row; they are kept, because the ledger may have lost rows"
            tell(log, logging.WARNING, "coordinator.files_differ", text, place=state.bodies.location, reason=text)
        else:
            state.bodies.remove(found.unnamed)
        state.bodies.remove(found.outlived)
        self._bodies_from = oldest
        self.trim()

    def trim(self) -> None:
        """After a new snapshot, delete the files that are surplus now. Raises OSError if the disk fails."""
        state = self._state
        if self._suspended or state.goes_back:
            return
        steps = state.snapshot_steps()
        leading = state.snapshots_before(state.upkeep_ledger.step)
        if not leading:  # the run has just gone back, and the snapshot that nodes need is not whole yet
            return
        surplus = [step for step in steps if step not in leading] + surplus_snapshots(leading, self._keep)
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
        """Whether a snapshot can be read and belongs to the ledger, so that a replay can start from it."""
        try:
            self._state.check_own_snapshot(step)
        except Locked:
            raise
        except (ReplicaError, LedgerError) as error:
            text = f"{error}; the older snapshots are kept"
            tell(log, logging.WARNING, "coordinator.snapshot_unsound", text, step=step)
            return False
        return True


def _take_inventory(state: RunState, oldest: int, named_by: Callable[[Row], Iterable[str]]) -> BodyInventory:
    """Compare the bodies with the rows. Raises LedgerError if a row cannot be read."""
    found = BodyInventory(state.bodies.names(), [], [])
    for row in state.upkeep_ledger.rows():
        name = row.body_hash.hex()
        if name not in found.unnamed:
            if row.step >= oldest:
                found.missing.append(row.step)
        elif row.step < oldest:
            found.outlived.append(name)
        found.unnamed.discard(name)
        found.unnamed.difference_update(named_by(row))
    return found


def _warn_missing(state: RunState, missing: list[int], oldest: int) -> None:
    """Warn about missing bodies. Raises LedgerError if all are missing: then the address is probably not mounted."""
    location = state.bodies.location
    if len(missing) == state.upkeep_ledger.step - oldest:
        raise LedgerError(
            f"step {oldest}: this body and all later ones are missing from {location}: mount it, or restore its files",
            oldest,
        )
    text = f"{location}: the bodies of {len(missing)} updates are missing; the first is that of step {missing[0]}"
    tell(log, logging.WARNING, "coordinator.files_differ", text, place=location, reason=text)
