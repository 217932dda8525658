"""Creates a run in a state directory: its data, contract and first state."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from thinwire_common.files import rename_synced, replace_synced, sync_folder
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.ledger.bodies import Bodies, location_of
from thinwire_coordinator.hall.ledger.state_directory import DATA_FILE, GoOn, always
from thinwire_proto.blobs import Blob, BlobFolder
from thinwire_proto.contract import CONTRACT_BYTES_MAX, Contract, RunSpec
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.contract.contract import Lineage, plain
from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.exact.amendments import amended
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import DataSource, Task, complete_model, data_kind_of, task_of
from thinwire_proto.wire.rows import genesis

SEED_BYTES = 6
"""Bound on the seed of the first parameters: every reader of JSON keeps such a number."""


def create_state(
    folder: Path,
    run: RunSpec,
    bodies_url: str | None = None,
    go_on: GoOn = always,
    weights: Path | None = None,
    parent: Lineage | None = None,
    planned: Sequence[Order] = (),
) -> None:
    """Create a new run: its data, contract and first state. `contract.json` appears last, when all else is complete.

    bodies_url: where to store bodies; None means the state directory. weights: a folder with the first state's
    parameters; None takes the one that the run file names, or draws them at random. parent: the run that these are
    said to be from; the contract names it if they are. planned: amendments that the run must be able to have,
    in the order of their steps. If `go_on` raises or the process dies, a later call starts over.
    """
    unfinished = folder / "contract.json.new"  # exists only while a run is being created
    if unfinished.exists():
        shutil.rmtree(folder / "snapshots", ignore_errors=True)  # an earlier call was interrupted
    for name in ("ledger.sqlite", "updates", "snapshots"):
        if (folder / name).exists():
            raise ConfigError(
                f"{folder} has {name} but no contract.json, so it is what is left of a run; restore contract.json, "
                "or give another --state-dir"
            )
    _keep_bodies_url(folder, bodies_url)
    weights = weights or (Path(run.model.first_weights) if run.model.first_weights else None)
    model, model_blobs = complete_model(run.model, go_on)
    run = run.model_copy(update={"model": model})
    task = task_of(model)
    kind = data_kind_of(run.data)
    kind.check(run)
    loaded = _loaded(task, weights) if weights else None  # before the data, which may take hours
    made = kind.make(run, go_on)
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": made.spec}
    seed = int.from_bytes(os.urandom(SEED_BYTES), "big") if loaded is None else None
    try:
        contract = Contract(**sections, parameters=task.manifest(), first_seed=seed)
    except ValidationError as error:
        raise ConfigError(plain(error)) from None
    if (size := len(contract.written)) > CONTRACT_BYTES_MAX:
        raise ConfigError(
            f"the model has {len(contract.parameters):,} tensors, whose names and shapes take {size:,} bytes; a "
            f"contract has at most {CONTRACT_BYTES_MAX:,}"
        )
    if made.file:
        replace_synced(folder / DATA_FILE, made.file)
    blobs = keep_blobs(folder / "blobs", {**model_blobs, **made.blobs}, go_on)
    if planned:
        _check_planned(contract, kind.open(made.file, contract, blobs), planned)
    go_on()
    tensors = task.initial_state(seed, blobs) if seed is not None else loaded or {}
    first = Replica(contract, tensors, 0, b"")
    if parent is not None and f"{first.model_fingerprint():016x}" == parent.fingerprint:
        contract = first.contract = contract.model_copy(update={"lineage": parent})
    replace_synced(unfinished, contract.written)
    save_first_state(first, folder, go_on)
    unfinished.rename(folder / "contract.json")
    sync_folder(folder)


def _check_planned(contract: Contract, data: DataSource, planned: Sequence[Order]) -> None:
    """Raise ConfigError for an amendment that this run and its data could not have."""
    for order in planned:
        try:
            contract = amended(contract, Amendment(order.at or 0, order.changes, order.because, order.id))
            data.amend(contract)
        except ContractError as error:
            raise ConfigError(f"the amendment at {order.at}: {error}") from None


def _loaded(task: Task, weights: Path) -> dict[str, Tensor]:
    tensors = task.load(weights)
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ConfigError(f"{weights}: {name}: has values that are not finite; nothing can be trained from them")
    return tensors


def keep_blob(folder: Path, data: bytes) -> Blob:
    """Write a blob into a folder durably, unless it is there. Raises OSError."""
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
    path = folder / blob.hash
    if not (path.is_file() and path.stat().st_size == len(data)):
        folder.mkdir(parents=True, exist_ok=True)
        replace_synced(path, data)
    return blob


def keep_blobs(folder: Path, blobs: Mapping[Blob, Path], go_on: GoOn) -> BlobFolder:
    """Link or copy blobs into a folder. Each appears under its name when it is complete."""
    for blob, source in blobs.items():
        go_on()
        link(source, folder / blob.hash)
    return BlobFolder(folder)


def link(source: Path, target: Path) -> None:
    """Let a file that never changes be in another folder too, unless it is: linked, or copied to another file system.
    It appears when it is complete."""
    if target.exists():
        return
    target.parent.mkdir(exist_ok=True)
    passing = target.with_suffix(".part")
    passing.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), passing)  # not a link itself, such as those of the Hub's cache
    except OSError:  # another file system
        shutil.copyfile(source, passing)
    rename_synced(passing, target)


def save_first_state(first: Replica, folder: Path, go_on: GoOn = always) -> None:
    """Give the first replica of a run its head, and write its snapshot."""
    first.head = genesis(first.contract.hash, first.state_hash())
    snapshots = folder / "snapshots"
    snapshots.mkdir(exist_ok=True)
    go_on()
    first.save(snapshots / "0.part")
    go_on()
    rename_synced(snapshots / "0.part", snapshots / "0.safetensors")


def _keep_bodies_url(folder: Path, url: str | None) -> None:
    """Store the address of a new run's bodies. Raises ConfigError if the address is not empty."""
    kept = folder / "bodies.url"
    if url is None or location_of(url) == location_of(str(folder / "updates")):
        kept.unlink(missing_ok=True)
        return
    bodies = Bodies(url)
    if bodies.everything():
        raise ConfigError(f"{url} is not empty: give --bodies an address that belongs to this run alone")
    replace_synced(kept, bodies.location.encode())
