"""A branch: a new run that begins with the parameters of another one at a step, on its data.

Its contract names the parent. It may take the parent's place: it has the parent's key, invites and nodes then. A node
that asks for the parent is told the branch's contract, sees that it goes on from the one that it knows, and follows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from thinwire_common.files import replace_synced, sync_folder
from thinwire_coordinator.hall.access.database import FILE as ACCESS
from thinwire_coordinator.hall.access.settings import AMENDMENTS, PLANNED, REFUSED
from thinwire_coordinator.hall.ledger.backup import MAY_CHANGE, copy_database
from thinwire_coordinator.hall.ledger.creation import link, save_first_state
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.ledger.results import FILE as RESULTS
from thinwire_coordinator.hall.ledger.state_directory import DATA_FILE, RunState, is_state, lock_state
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.contract.contract import ANCESTORS_MAX, Lineage, plain
from thinwire_proto.contract.data.tokens import WEIGHTS
from thinwire_proto.contract.schedule import BENDS, ScheduleSpec
from thinwire_proto.errors import ConfigError, ContractError, PayloadError
from thinwire_proto.exact.amendments import contract_at
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import share_reached
from thinwire_proto.task import data_kind_of, task_of

OF_THE_RUN = frozenset({"bodies.url", RESULTS})
"""Of the small files, what a branch has of its own."""


def branch(
    parent: RunState, replica: Replica, step: int, folder: Path, changes: Mapping[str, Any], *, apart: bool
) -> Contract:
    """Create a run in an empty folder that begins with a replica of the parent, and return its contract. Raises
    ConfigError.

    step: of the replica, in the unit of `schedule.steps`. changes: new values by dotted key. apart: with a key of its
    own, so that the parent may go on.
    """
    contract = branched(contract_at(parent.contract, max(0, step - 1)), replica, step, changes)
    _check_data(parent, contract)
    with lock_state(folder):
        if is_state(folder):
            raise ConfigError(f"{folder}: holds a run already; give another folder")
        if (parent.folder / DATA_FILE).exists():
            link(parent.folder / DATA_FILE, folder / DATA_FILE)
        for blob in sorted((parent.folder / "blobs").glob("*")):
            link(blob, folder / "blobs" / blob.name)
        save_first_state(Replica(contract, replica.tensors, 0, b"", is_checked=True), folder)
        if goes_on_with_samples(parent.contract, contract):
            _go_on_with_samples(parent, folder)
        if not apart:  # late: without a contract, a folder with the parent's key could become another run
            _take_over(parent.folder, folder)
        _forget_orders(folder)
        replace_synced(folder / "contract.json", contract.written)
        sync_folder(folder)
    return contract


def branched(parent: Contract, replica: Replica, step: int, changes: Mapping[str, Any]) -> Contract:
    """The contract of a branch. Its schedule goes on from where the parent's stands, unless the changes say otherwise.
    Raises ConfigError."""
    sections = {name: getattr(parent, name).model_dump() for name in RunSpec.model_fields}
    if parent.schedule.steps > step and parent.exchange.kind == "star":
        sections["schedule"] |= _course(parent.schedule, step, changes)
    else:
        sections["schedule"] |= _whole(parent)
    if changes.get("rule.kind", parent.rule.kind) != parent.rule.kind:
        # what the parent says of its rule, another one may not know, and what it leaves out has another default there
        sections["rule"], sections["demo"] = {}, {}
        for name in parent.rule.ROUND_DEFAULTS:
            del sections["round"][name]
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if section not in sections or not name:
            raise ConfigError(f"{key}: there is no such key in a run file")
        sections[section][name] = value
    known = parent.lineage.contracts if parent.lineage is not None else ()
    lineage = Lineage(
        contract=parent.hash.hex(),
        step=step,
        fingerprint=f"{replica.model_fingerprint():016x}",
        ancestors=known[:ANCESTORS_MAX],
    )
    try:
        run = RunSpec.model_validate(sections)
        specs = {name: getattr(run, name) for name in RunSpec.model_fields}
        contract = Contract(**specs, parameters=parent.parameters, lineage=lineage)
    except ValidationError as error:
        raise ConfigError(plain(error)) from None
    if tuple(task_of(contract.model).manifest()) != parent.parameters:
        raise ConfigError("the model has other parameters than the parent's, so it cannot begin with them")
    return contract


def _course(schedule: ScheduleSpec, step: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with which a branch goes on: on the parent's course, or from where it stands to another end."""
    left = schedule.steps - step
    is_at_zero = step >= schedule.warmup_end and not share_reached(schedule, step)
    if is_at_zero and "schedule.warmup_steps" not in changes:
        raise ConfigError(f"the rate is 0 from step {step} on; give schedule.warmup_steps, in which it rises again")
    if changes.keys().isdisjoint(f"schedule.{name}" for name in (*BENDS, "start")):
        return {"steps": left, "begun": step - schedule.begin}
    start = share_reached(schedule, step) if step > schedule.begin else schedule.start
    return {"steps": left, "warmup_steps": max(0, schedule.warmup_end - step), "start": start, "begun": 0}


def _whole(parent: Contract) -> dict[str, Any]:
    """The keys of a whole schedule, for a branch of a complete run: without what amendments, a parent of its own, and
    steps that were given up have made of it."""
    schedule = parent.schedule
    steps = schedule.steps - schedule.moved
    warmup_steps = min(parent.first.schedule.warmup_steps, steps - 1)
    return {"steps": steps, "warmup_steps": warmup_steps, "start": 0.0, "begun": 0}


def _check_data(parent: RunState, contract: Contract) -> None:
    """Raise ConfigError if the parent's data cannot be used as the contract says."""
    file = parent.folder / DATA_FILE
    try:
        data_kind_of(contract.data).open(file.read_bytes() if file.exists() else b"", contract, parent.blobs)
    except (PayloadError, ContractError) as error:
        raise ConfigError(f"the data of {parent.folder} cannot be used so: {error}") from None


def _take_over(parent: Path, folder: Path) -> None:
    """Copy what nodes know the run by, and who may join."""
    (folder / "tls").mkdir(0o700, exist_ok=True)
    for name in MAY_CHANGE:
        if name not in OF_THE_RUN and (parent / name).exists():
            replace_synced(folder / name, (parent / name).read_bytes(), private=True)
    if (parent / ACCESS).exists():
        (folder / ACCESS).unlink(missing_ok=True)
        copy_database(parent / ACCESS, folder / ACCESS)


def _forget_orders(folder: Path) -> None:
    """Forget amendments that were ordered for another run: for the parent, whose amendments are in the contract of the
    branch, or for one whose creation failed."""
    if (folder / ACCESS).exists():
        with closing(sqlite3.connect(folder / ACCESS)) as db:
            db.execute("DELETE FROM settings WHERE key IN (?, ?, ?)", (AMENDMENTS, REFUSED, PLANNED))
            db.commit()


def goes_on_with_samples(parent: Contract, contract: Contract) -> bool:
    """Whether a branch begins with samples that the parent has not used: if each position has the same sample in both.
    Otherwise it begins with the first position of its own order."""
    was_mixed_anew = any(WEIGHTS in amendment.changes for amendment in parent.amendments)
    before, now = (one.data.model_dump(exclude={"held_out"}) for one in (parent, contract))
    return before == now and contract.exchange.kind == parent.exchange.kind and not was_mixed_anew


def _go_on_with_samples(parent: RunState, folder: Path) -> None:
    leases = parent.watch_ledger.leases()
    for node in sorted(leases.holders):
        leases.take_back(node)
    with closing(Ledger(folder / "ledger.sqlite")) as ledger:
        ledger.record_leases(leases.packed())
