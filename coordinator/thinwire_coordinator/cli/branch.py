"""The command `thinwire-coordinator branch`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger import branching
from thinwire_coordinator.hall.ledger.identity import open_existing_identity
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.exact.schedule import learning_rate


def branch(folder: Path, step: int | None, to: Path, changes: Mapping[str, Any], *, apart: bool) -> None:
    """Create a run that begins with the model of a step, and print what to do next. Raises ThinwireError."""
    open_existing_identity(folder)
    with closing(open_state(folder, read_only=True)) as state:
        kind = kind_of(state.contract)
        replica = kind.model_at(state, step)
        at = kind.trained(state.contract, replica)
        contract = branching.branch(state, replica, at, to, changes, apart=apart)
        goes_on = branching.goes_on_with_samples(state.contract, contract)
        later = [amendment.in_words for amendment in state.contract.amendments if amendment.step >= max(1, at)]
        begun = {amendment.id for amendment in state.contract.amendments}
    with closing(AccessStore(folder)) as store:
        waits = [order for order in store.amendments.waiting() if order.id not in begun]
    later += [Amendment(0, order.changes, order.because).in_words for order in waits]
    schedule = contract.schedule
    print(f"{to} has a run that begins with {kind.unit} {at} of {folder}; contract {contract.hash.hex()}")
    print(f"its schedule: {schedule.steps:,} steps, beginning at a rate of {learning_rate(schedule, 0):.4g}")
    if not goes_on:
        print("it begins with the first samples of its own order, so samples of the run before may come again")
    for words in later:
        print(clean_text(f"it does not have what {folder} was amended by later, or will be: {words}"))
    serve = shlex.join(["thinwire-coordinator", "serve", "--state-dir", str(to)])
    if apart:
        print(f"it has a key and invites of its own; start it with: {serve}")
        return
    print(f"it takes the place of {folder}: stop that coordinator for good, and start this one with the options of")
    print(f"that one, such as --listen, but without --run and --bodies: {serve}")
    print("nodes follow by themselves, and do not come back to the run before")
