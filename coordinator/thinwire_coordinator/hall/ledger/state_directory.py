"""The coordinator's state directory: its layout, and how it is opened. `creation` makes one.

contract.json               the contract, in canonical form
identity.key                the coordinator's secret key, which signs the rows; nodes know the run by its public key
corpus.zst                  the data file, if the contract's kind of data has one
ledger.sqlite               rows, voids, terms, losses
blobs/HASH                  shards of data and weights of a base, which nodes fetch as they need them
updates/HASH                bodies of updates, if they are stored here
bodies.url                  address of the bodies, if they are stored elsewhere
snapshots/STEP.safetensors  parameters and state of a replica at a step
results.jsonl               what `evaluate` has found
sinks/NAME.json             what TensorBoard and other sinks have got; wandb's files are there too
lock                        held by the coordinator that runs on this directory
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgpack
from filelock import FileLock, Timeout

from thinwire_common.file_system import ELSEWHERE, check_locks, described
from thinwire_common.files import rename_synced
from thinwire_coordinator.hall.ledger.bodies import Bodies, location_of
from thinwire_coordinator.hall.ledger.identity import check_begun_or_empty, check_not_of_a_node, open_identity
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_proto.blobs import BlobFolder, blob_of
from thinwire_proto.contract import Contract, RunSpec, parse_contract, run_differences
from thinwire_proto.contract.amendment import Amendment, parse_amendment
from thinwire_proto.contract.data.prepared import PreparedSpec
from thinwire_proto.data.manifest import MANIFEST_FILE
from thinwire_proto.errors import (
    ConfigError,
    ContractError,
    Damaged,
    LedgerError,
    OtherContract,
    PayloadError,
    ReplicaError,
)
from thinwire_proto.exact.amendments import amended_by, contract_at, history, is_in_history, rewinds
from thinwire_proto.exact.replica import Replica, check_snapshot, load_replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.topk import check_update_topk
from thinwire_proto.exact.update import Update
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.identity.private_files import keeps_permissions
from thinwire_proto.models import check_manifest
from thinwire_proto.task import DataSource, HeldOutSet, data_kind_of
from thinwire_proto.wire.codec import decode_update
from thinwire_proto.wire.rows import Row

log = logging.getLogger("thinwire.coordinator")

DATA_FILE = "corpus.zst"
BEGUN_AMENDMENTS = "amendment."
"""The keys of the ledger's directory under which amendments are that no row has yet begin so."""
SETS_MAX = 16
"""Held-out sets that are measured; it bounds the time of a measurement, the metrics and the messages to browsers."""


FOLLOW = ("schedule.start:", "schedule.warmup_steps:", "schedule.begun:")
"""The keys that an amendment of the schedule changes besides those that it names."""


class StartInterrupted(Exception):
    """A long operation was told to stop between two of its steps. The next start continues from the files on disk."""


GoOn = Callable[[], None]
"""Called between two steps of a long operation; raises StartInterrupted to end it."""


def always() -> None:
    """A `GoOn` that never raises."""


@dataclass
class RunState:
    """An open state directory. contract: the one in force for the next step. An amendment replaces it."""

    folder: Path
    contract: Contract
    data: DataSource
    blobs: BlobFolder
    ledger: Ledger
    reading_ledger: Ledger
    """A connection of its own, for the thread that answers joining and waiting nodes."""
    fetch_ledger: Ledger
    """The same for the thread that reads updates for nodes that catch up."""
    watch_ledger: Ledger
    """The same for the thread that reads for status, page and metrics."""
    upkeep_ledger: Ledger
    """The same for the thread that writes snapshots and deletes old files."""
    bodies: Bodies
    secret_key: SecretKey | None
    """The coordinator's; None if the directory was opened only to read."""
    goes_back: bool = False
    """Whether the run goes back to an earlier step now, so that nothing that leads there may be deleted."""

    @property
    def key(self) -> SecretKey:
        if self.secret_key is None:
            raise RuntimeError(f"{self.folder} was opened only to read, so nothing can be signed")
        return self.secret_key

    @property
    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        """The held-out sets that are measured: the first SETS_MAX that are not empty."""
        return tuple(found for found in self.data.held_out_sets() if found.samples)[:SETS_MAX]

    @property
    def tokens_a_sample(self) -> int:
        """See `DataSource.tokens_a_sample`."""
        return self.data.tokens_a_sample(self.contract.model.context)

    def snapshot_path(self, step: int) -> Path:
        return self.folder / "snapshots" / f"{step}.safetensors"

    def snapshot_steps(self) -> list[int]:
        """The steps of all snapshots, ascending."""
        found = (self.folder / "snapshots").glob("*.safetensors")
        return sorted(int(path.stem) for path in found if path.stem.isdigit())

    def snapshots_before(self, step: int) -> list[int]:
        """The steps of the snapshots that a replay to a step can begin with, ascending."""
        return [found for found in self.snapshot_steps() if is_in_history(self.contract, found, step)]

    def why_not_kept(self, step: int) -> str:
        """Why the parameters of a step cannot be computed again, in words; empty if they can."""
        steps = self.snapshot_steps()
        if not steps or self.snapshots_before(step):
            return ""
        begins = history(self.contract, step)[0].last
        follows = f"it follows from step {begins}, and " if begins < step else ""
        return f"step {step} is no longer kept: {follows}the oldest snapshot is that of step {steps[0]}"

    def went_back_since(self, step: int) -> bool:
        """Whether the run has gone back to an earlier step since this one, so that no update leads on from it."""
        return any(step <= at for at in rewinds(self.contract))

    def save_snapshot(self, replica: Replica) -> Path:
        path = self.snapshot_path(replica.step)
        temporary = path.with_name(path.name + ".part")
        replica.save(temporary)
        rename_synced(temporary, path)
        return path

    def load_snapshot(self, step: int) -> Replica:
        return self.load_replica(self.snapshot_path(step))

    def load_replica(self, path: Path) -> Replica:
        """Raises ReplicaError if the file is damaged, Damaged if contract.json is not this run's, or OSError."""
        with self._checking_the_contract():
            return load_replica(self.contract, path)

    @contextmanager
    def _checking_the_contract(self) -> Iterator[None]:
        try:
            yield
        except OtherContract as error:
            name = self.folder / "contract.json"
            text = f"{error}, so {name} is not the contract that this run began with"
            raise Damaged(text, restore="contract.json") from None

    def load_own_snapshot(self, step: int) -> Replica:
        """Load a snapshot as `load_replica` does. Raises ReplicaError also if it does not fit the ledger's rows."""
        replica = self.load_snapshot(step)
        self._check_head(step, replica.head)
        return replica

    def check_own_snapshot(self, step: int) -> None:
        """Raise what `load_own_snapshot` does, without memory for the parameters."""
        with self._checking_the_contract():
            head = check_snapshot(self.contract, self.snapshot_path(step))
        self._check_head(step, head)

    def _check_head(self, step: int, head: bytes) -> None:
        if step > 0 and head != self.upkeep_ledger.row(step - 1).hash:
            raise ReplicaError(f"{self.snapshot_path(step)} does not belong to the row of step {step - 1}")

    def snapshot_is_lighter(self, step: int) -> bool:
        """Whether the newest snapshot and the updates since it are a smaller download than the updates since `step`.

        Also true if retention no longer promises the updates since `step`, or if none leads on from it.
        """
        steps = self.snapshot_steps()
        if step < steps[0] or self.went_back_since(step):
            return True
        newest = steps[-1]
        size, ledger = self.snapshot_path(newest).stat().st_size, self.reading_ledger
        return newest > step and size + ledger.body_bytes_since(newest) < ledger.body_bytes_since(step)

    def update(self, row: Row) -> Update:
        """Read and check the update that a row names. Raises LedgerError with the step."""
        try:
            body, layout = self.bodies.get(row.body_hash, row.body_bytes), TileLayout(self.contract.parameters)
            demo = contract_at(self.contract, row.step).demo
            update = decode_update(body, layout, demo.magnitude, demo.update_levels)
            check_update_topk(update.merged, layout, demo.update_topk)
        except (LedgerError, PayloadError, OSError) as error:
            raise LedgerError(f"step {row.step}: {error}", row.step) from None
        if update.step != row.step:
            raise LedgerError(f"step {row.step}: the body is the update of step {update.step}", row.step)
        return update

    def close(self) -> None:
        self.ledger.close()
        self.reading_ledger.close()
        self.fetch_ledger.close()
        self.watch_ledger.close()
        self.upkeep_ledger.close()


def begun(amendments: Iterable[Amendment]) -> dict[str, bytes]:
    """Amendments that no row has, packed, by their keys in the ledger."""
    return {f"{BEGUN_AMENDMENTS}{one.id}": bytes(msgpack.packb(one.written)) for one in amendments}


def unsealed(contract: Contract, step: int) -> dict[str, bytes]:
    """The same of a run whose row of a step has the amendments that hold from it on. step: of the next row."""
    return begun(one for one in contract.amendments if one.step >= step)


def lock_state(folder: Path) -> FileLock:
    """Lock a state directory against other coordinators. Raises ConfigError if one runs on it already, if it is a
    node's, or if it has files of others."""
    try:
        check_not_of_a_node(folder)
        check_begun_or_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        check_locks(folder)
        if not keeps_permissions(folder):
            raise ConfigError(
                f"{described(folder)} keeps no permissions, so all users of this machine could read the key of the "
                f"run and the organizer's secret; {ELSEWHERE}"
            )
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


def is_state(folder: Path) -> bool:
    return (folder / "contract.json").exists()


def open_state(folder: Path, *, read_only: bool = False) -> RunState:
    """Open an existing state directory. Raises ConfigError or LedgerError.

    read_only: do not open its secret key.
    """
    check_not_of_a_node(folder)
    try:
        contract = _read_contract(folder / "contract.json")
        check_manifest(contract)
        kind = data_kind_of(contract.data)
        file, blobs = b"", BlobFolder(folder / "blobs")
        if kind.file_bytes_max(contract.data):
            file = (folder / DATA_FILE).read_bytes()
        data = kind.open(file, contract, blobs)
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} is not a coordinator's state directory: {error.filename} is missing") from None
    except PayloadError as error:
        raise Damaged(f"{folder / DATA_FILE}: {error}", restore="it") from None
    path, url = folder / "ledger.sqlite", read_bodies_url(folder)
    if lost := _how_lost(path, url):
        raise Damaged(f"{path} is {lost}", restore="it")
    ledger = Ledger(path, read_only=read_only)
    reading, fetch, watch, upkeep = (ledger.sibling() for _ in range(4))
    key = None if read_only else open_identity(folder)
    if key is not None:
        ledger.signatures.adopt(key.public)
    try:
        sealed = ledger.amendments()
        ids = {parse_amendment(one).id for one in sealed}
        # leases that are written while a row is sealed bring back what that row has
        others = [one for one in ledger.directory_parts(BEGUN_AMENDMENTS) if parse_amendment(one).id not in ids]
        contract = amended_by(contract, [*sealed, *others])
        data.amend(contract)
    except ContractError as error:
        raise Damaged(f"{path}: an amendment of the run: {error}", restore="it") from None
    return RunState(folder, contract, data, blobs, ledger, reading, fetch, watch, upkeep, Bodies(url), key)


def _how_lost(ledger: Path, bodies_url: str) -> str:
    """How a run with sealed updates has lost its ledger, in a word; nothing if it is there, or if the run is new."""
    exists = ledger.exists()
    if exists and ledger.stat().st_size:
        return ""
    later = any(path.stem != "0" for path in (ledger.parent / "snapshots").glob("*.safetensors"))
    if not later and not Bodies(bodies_url).names():  # it makes the folder, which says nothing
        return ""
    return "empty" if exists else "missing"


def _read_contract(path: Path) -> Contract:
    try:
        return parse_contract(path.read_bytes())
    except ContractError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_bodies_url(folder: Path) -> str:
    """The address of the bodies of the run in a state directory."""
    kept = folder / "bodies.url"
    return kept.read_text(encoding="utf-8", errors="replace").strip() if kept.exists() else str(folder / "updates")


def check_bodies(state: RunState, url: str) -> None:
    """Raise ConfigError if the bodies of the existing run are not stored at `url`."""
    if location_of(url) != state.bodies.location:
        raise ConfigError(
            f"{url}: the updates of this run are at {state.bodies.location}; leave --bodies out to continue there; to "
            f"move them, copy all files to the new address and write it into {state.folder / 'bodies.url'}"
        )


def check_run(state: RunState, run: RunSpec) -> None:
    """Raise ConfigError, naming the fields, if a run file differs from the existing run."""
    hint = (
        "leave --run out to continue this one; `thinwire-coordinator amend` changes it; for a new run, give another "
        "--state-dir"
    )
    found = run_differences(state.contract.first, run)
    if found and state.contract.amendments:  # a file may say what was amended, but for what follows from it
        now = run_differences(state.contract, run)
        found = found if [one for one in now if not one.startswith(FOLLOW)] else []
    if found:
        raise ConfigError(
            f"{state.folder} holds a run with another contract ({'; '.join(found)} in the run file); {hint}"
        )
    if other := _other_data(state.contract, run):
        raise ConfigError(f"{state.folder} holds a run on other data ({other}); {hint}")


def _other_data(contract: Contract, run: RunSpec) -> str:
    """How the folder of prepared data that a run file names differs from the run's data; empty if it does not.

    A contract has no folder, so it is told by its manifest. The run has a copy of its own: the folder may be gone.
    """
    ours, theirs = contract.data, run.data
    if not isinstance(ours, PreparedSpec) or not isinstance(theirs, PreparedSpec) or not theirs.folder:
        return ""
    try:
        name = blob_of(Path(theirs.folder) / MANIFEST_FILE).hash
    except OSError:
        return ""
    same = name == ours.manifest_hash
    return "" if same else f"data.folder: {theirs.folder} has the manifest {name[:16]}…, not {ours.manifest_hash[:16]}…"
