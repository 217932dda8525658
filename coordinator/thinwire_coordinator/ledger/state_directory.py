"""The coordinator's state directory: what is in it, how it is made, and how a replica is brought to the head.

contract.json             the contract, canonical
corpus.zst                the file of the data that it names, if they have one
ledger.sqlite             rows, voids, terms, losses
updates/HASH              bodies, unless they lie elsewhere
bodies.url                where they lie then
snapshots/STEP.safetensors
lock                      held by the coordinator that runs on this directory
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from thinwire_common.files import rename_synced, replace_synced, sync_folder
from thinwire_common.logs import tell
from thinwire_coordinator.ledger.bodies import Bodies, place_of
from thinwire_coordinator.ledger.ledger import Ledger
from thinwire_proto.contract import Contract, RunSpec, contract_like, differences, parse_contract
from thinwire_proto.errors import ConfigError, ContractError, Damaged, LedgerError, PayloadError, ReplicaError
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import check_update_topk
from thinwire_proto.exact.update import Update
from thinwire_proto.models import check_manifest
from thinwire_proto.task import DataSource, data_kind_of, task_of
from thinwire_proto.wire.codec import decode_update
from thinwire_proto.wire.rows import Row, genesis

log = logging.getLogger("thinwire.coordinator")

DATA_FILE = "corpus.zst"


class Interrupted(Exception):
    """Told to stop between two steps of something long. What is on disk by then is what the next start goes on from."""


GoOn = Callable[[], None]
"""Called between two steps of something long; raises Interrupted to end it."""


def always() -> None:
    """Never raises: go on to the end."""


@dataclass(frozen=True)
class State:
    """An open state directory."""

    folder: Path
    contract: Contract
    data: DataSource
    ledger: Ledger
    reading_ledger: Ledger
    """The same file by a connection of its own, for the thread that answers questions."""
    upkeep_ledger: Ledger
    """The same for the thread that writes snapshots and deletes what is old."""
    bodies: Bodies

    def snapshot_path(self, step: int) -> Path:
        return self.folder / "snapshots" / f"{step}.safetensors"

    def snapshot_steps(self) -> list[int]:
        """Ascending."""
        found = (self.folder / "snapshots").glob("*.safetensors")
        return sorted(int(path.stem) for path in found if path.stem.isdigit())

    def save_snapshot(self, replica: Replica) -> Path:
        path = self.snapshot_path(replica.step)
        passing = path.with_name(path.name + ".part")
        replica.save(passing)
        rename_synced(passing, path)
        return path

    def load_snapshot(self, step: int) -> Replica:
        return load_replica(self.contract, self.snapshot_path(step))

    def load_own_snapshot(self, step: int) -> Replica:
        """A snapshot that belongs to the ledger's rows. Raises ReplicaError if it does not, or cannot be read."""
        replica = self.load_snapshot(step)
        if step > 0 and replica.head != self.upkeep_ledger.row(step - 1).hash:
            raise ReplicaError(f"{self.snapshot_path(step)} does not belong to the row of step {step - 1}")
        return replica

    def snapshot_is_lighter(self, step: int) -> bool:
        """Whether the newest snapshot, and the updates since it, weigh less than the updates since `step`; also where
        retention does not promise the updates since `step` any more."""
        steps = self.snapshot_steps()
        if step < steps[0]:
            return True
        newest = steps[-1]
        size, ledger = self.snapshot_path(newest).stat().st_size, self.reading_ledger
        return newest > step and size + ledger.body_bytes_since(newest) < ledger.body_bytes_since(step)

    def update(self, row: Row) -> Update:
        """The update that a row names, read and checked. Raises LedgerError, which names the step."""
        try:
            body, layout = self.bodies.get(row.body_hash, row.body_bytes), TileLayout(self.contract.parameters)
            update = decode_update(body, layout, self.contract.demo.magnitude)
            check_update_topk(update.merged, layout, self.contract.demo.update_topk)
        except (LedgerError, PayloadError, OSError) as error:
            raise LedgerError(f"step {row.step}: {error}", row.step) from None
        if update.step != row.step:
            raise LedgerError(f"step {row.step}: its body is the update of step {update.step}", row.step)
        return update

    def close(self) -> None:
        self.ledger.close()
        self.reading_ledger.close()
        self.upkeep_ledger.close()


def lock_state(folder: Path) -> FileLock:
    """Keep any other coordinator off a state directory. Raises ConfigError if one is on it already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        lock.acquire(blocking=False)
    except Timeout:
        raise ConfigError(
            f"{folder}: another coordinator runs on this state directory; end it, or give another --state-dir"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"{folder}: cannot be used as a state directory: {reason}; give another --state-dir"
        ) from None
    return lock


def create_state(folder: Path, run: RunSpec, bodies_url: str | None = None, go_on: GoOn = always) -> None:
    """Make a new run: its data, contract and first state. What exists when `contract.json` does is whole.

    bodies_url: where bodies are to lie; in the state directory, if None. If `go_on` raises, or the process dies, a
    later call begins anew.
    """
    passing = folder / "contract.json.new"  # there only while a run is made
    if passing.exists():
        shutil.rmtree(folder / "snapshots", ignore_errors=True)  # that was interrupted
    for name in ("ledger.sqlite", "updates", "snapshots"):
        if (folder / name).exists():
            raise ConfigError(
                f"{folder} has no contract.json, but has {name}: it is what is left of a run; restore contract.json, "
                "or give another --state-dir"
            )
    _keep_bodies_url(folder, bodies_url)
    data, file = data_kind_of(run.data).make(run, go_on)
    task = task_of(run.model)
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": data}
    contract = Contract(**sections, parameters=task.manifest())
    if file:
        replace_synced(folder / DATA_FILE, file)
    go_on()
    first = Replica(contract, task.initial_state(int.from_bytes(os.urandom(7), "big")), 0, b"")
    first.head = genesis(contract.hash, first.state_hash())
    replace_synced(passing, contract.written)
    snapshots = folder / "snapshots"
    snapshots.mkdir()
    go_on()
    first.save(snapshots / "0.part")
    go_on()
    rename_synced(snapshots / "0.part", snapshots / "0.safetensors")
    passing.rename(folder / "contract.json")
    sync_folder(folder)


def is_state(folder: Path) -> bool:
    return (folder / "contract.json").exists()


def open_state(folder: Path, *, read_only: bool = False) -> State:
    """Open what `create_state` made. Raises ConfigError or LedgerError. read_only: do not upgrade its ledger."""
    try:
        contract = _read_contract(folder / "contract.json")
        check_manifest(contract)
        kind = data_kind_of(contract.data)
        data = kind.open((folder / DATA_FILE).read_bytes() if kind.file_bytes_max(contract.data) else b"", contract)
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} is not a coordinator's state directory: there is no {error.filename}") from None
    except PayloadError as error:
        raise Damaged(f"{folder / DATA_FILE}: {error}", restore="it") from None
    path, url = folder / "ledger.sqlite", read_bodies_url(folder)
    if not path.exists() and ((folder / "updates").exists() or Bodies(url).names()):
        raise Damaged(f"{path} is missing", restore="it")
    ledger = Ledger(path, read_only=read_only)
    return State(folder, contract, data, ledger, ledger.sibling(), ledger.sibling(), Bodies(url))


def _read_contract(path: Path) -> Contract:
    try:
        return parse_contract(path.read_bytes())
    except ContractError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_bodies_url(folder: Path) -> str:
    """Where the bodies of the run in a state directory lie."""
    kept = folder / "bodies.url"
    return kept.read_text(encoding="utf-8", errors="replace").strip() if kept.exists() else str(folder / "updates")


def _keep_bodies_url(folder: Path, url: str | None) -> None:
    """Write down where a new run's bodies lie. Raises ConfigError if the place is not an empty one."""
    kept = folder / "bodies.url"
    if url is None or place_of(url) == place_of(str(folder / "updates")):
        kept.unlink(missing_ok=True)
        return
    bodies = Bodies(url)
    if bodies.everything():
        raise ConfigError(f"{url} is not empty: give --bodies a place that belongs to this run alone")
    replace_synced(kept, bodies.place.encode())


def check_bodies(state: State, url: str) -> None:
    """Raise ConfigError if the bodies of the run that is there lie elsewhere than at `url`."""
    if place_of(url) != state.bodies.place:
        raise ConfigError(
            f"{url}: the updates of this run lie at {state.bodies.place}; leave --bodies out to go on there; to move "
            f"them, copy all that is there to the new place and write its address into {state.folder / 'bodies.url'}"
        )


def check_run(state: State, run: RunSpec) -> None:
    """Raise ConfigError, naming the fields, if a run file asks for something else than the run that is there."""
    found = differences(state.contract, contract_like(state.contract, run))
    if found:
        raise ConfigError(
            f"{state.folder} holds a run with another contract ({'; '.join(found)} in the run file); "
            "give another --state-dir for a new run, or leave --run out to go on with this one"
        )


def replay(state: State, replica: Replica, stop: int | None = None) -> Iterator[Row]:
    """Bring a replica from its step to `stop` (the head, if None), and yield each row after it was checked and applied.

    Checks the row's own hash, the chain, the body's hash, and the fingerprint of the state before. Raises LedgerError,
    which names the step, and leaves the replica at that step.
    """
    for row in state.ledger.rows(replica.step, stop):
        if row.step != replica.step:
            raise Damaged(f"step {replica.step}: its row is missing; the next is that of step {row.step}", replica.step)
        if row.previous != replica.head:
            raise Damaged(f"step {row.step}: its row does not follow the row before", row.step)
        if replica.fingerprint(row.nonce) != row.fingerprint:
            # rows, bodies and snapshots have hashes of their own, so what is left is what this machine made of them
            raise LedgerError(
                f"step {row.step}: the parameters do not have the fingerprint that was sealed; if they have it on "
                "another machine, this one's memory or processor is faulty",
                row.step,
            )
        replica.apply(state.update(row), row.hash)
        yield row


def replica_at_head(state: State, *, set_aside: bool = False, go_on: GoOn = always) -> Replica:
    """From the newest snapshot that can be read, by replay. Raises LedgerError.

    set_aside: give snapshots that cannot be used another name, so that newcomers are not sent them. go_on: called after
    each row.
    """
    check_length(state)
    problems = []
    for step in reversed(state.snapshot_steps()):
        try:
            replica = state.load_own_snapshot(step)
        except ReplicaError as error:
            problems.append(str(error))
            if set_aside and step > 0:
                tell(
                    log,
                    logging.WARNING,
                    "coordinator.snapshot_set_aside",
                    f"{error}; set aside as {step}.bad",
                    step=step,
                )
                state.snapshot_path(step).replace(state.snapshot_path(step).with_suffix(".bad"))
            continue
        for _ in replay(state, replica):
            go_on()
        return replica
    why = "; ".join(problems) or "there is none"
    raise Damaged(f"{state.folder}: no snapshot can be used: {why}", restore="one")


def check_length(state: State) -> None:
    """Raise LedgerError if the ledger has lost its last rows, as far as the snapshots beside it can tell."""
    step, newest = state.ledger.step, max(state.snapshot_steps(), default=0)
    if newest > step:
        raise Damaged(
            f"step {step}: the ledger ends here, but there is a snapshot of step {newest}: its last rows were lost",
            step,
        )
