"""The command `thinwire-coordinator amend`: changes the contract of a run from one of its next steps on."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from thinwire_coordinator.cli.init import print_figures, swarm_of
from thinwire_coordinator.hall.access.amendments import Order
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.identity import open_existing_identity
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.planning.completion import facts_of
from thinwire_coordinator.planning.exchanges import plan_of, planner_of
from thinwire_coordinator.planning.facts import DataFacts
from thinwire_coordinator.planning.problems import read_toml
from thinwire_coordinator.planning.run_text import Row, rows_of
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import REASON_LENGTH_MAX, Amendment
from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.exact.amendments import amendable_keys, amended
from thinwire_proto.exact.schedule import learning_rate

ID_BYTES = 8


def amend(folder: Path, arguments: argparse.Namespace) -> None:
    """Order an amendment, or list those there are. Raises ThinwireError."""
    open_existing_identity(folder)
    with closing(open_state(folder, read_only=True)) as state, closing(AccessStore(folder)) as store:
        contract, step = state.contract, state.ledger.step
        waiting = store.amendments.all()
        if not arguments.set:
            _list(contract, waiting)
            return
        if len(arguments.because) > REASON_LENGTH_MAX:
            raise ConfigError(
                f"--because has at most {REASON_LENGTH_MAX} characters; this has {len(arguments.because)}"
            )
        order = Order(secrets.token_hex(ID_BYTES), dict(map(change_of, arguments.set)), arguments.because, arguments.at)
        sealed = [amendment.id for amendment in contract.amendments]
        earlier = [one for one in waiting if not one.refused and one.id not in sealed]
        begins = max(step, order.at or 0)
        before = contract
        for one in sorted((one for one in earlier if (one.at or 0) <= begins), key=lambda one: one.at or 0):
            before = amended(before, _as_of(one, before, step))
        try:
            after = amended(before, _as_of(order, before, begins))
            state.data.amend(after)
        except ContractError as error:
            keys = amendable_keys(contract)
            known = "" if order.changes.keys() <= set(keys) else f"; these keys may change: {', '.join(keys)}"
            raise ConfigError(f"{error}{known}") from None
        _show(arguments, before, after)
        if arguments.dry_run:
            print("nothing is ordered, because of --dry-run")
            return
        store.amendments.add(order, sealed)
    when = f"step {begins}" if begins > step else f"the next round (step {step} or {step + 1})"
    print(f"ordered: it holds from {when} on, once the coordinator runs; nodes follow by themselves")


def _as_of(order: Order, contract: Contract, step: int) -> Amendment:
    """The amendment as it will be if no step is sealed meanwhile."""
    last = contract.amendments[-1].step if contract.amendments else 0
    known = contract.amendments[-1].position if contract.amendments else 0
    return Amendment(max(step, last, order.at or 0), order.changes, order.because, order.id, known)


def change_of(text: str) -> tuple[str, Any]:
    """KEY=VALUE, with a value as in a run file; text may go without its quotes."""
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise ConfigError(f"--set {text}: must be SECTION.KEY=VALUE, such as schedule.learning_rate=0.0009")
    try:
        return key.strip(), read_toml(f"value = {value}")["value"]
    except ValueError:
        return key.strip(), value.strip()


def _list(contract: Contract, orders: Sequence[Order]) -> None:
    sealed = {amendment.id for amendment in contract.amendments}
    for amendment in contract.amendments:
        print(clean_text(f"from step {amendment.step} on: {amendment.in_words}"))
    for order in (one for one in orders if one.id not in sealed):
        words = Amendment(0, order.changes, order.because).in_words
        waits = f"waits for step {order.at}" if order.at else "waits for the next round"
        print(clean_text(f"refused: {words}: {order.refused}" if order.refused else f"{waits}: {words}"))
    if not contract.amendments and not orders:
        print("this run has no amendments; --set SECTION.KEY=VALUE makes one")


def _show(arguments: argparse.Namespace, before: Contract, after: Contract) -> None:
    """Print what changes, and what follows from it."""
    amendment = after.amendments[-1]
    changes = [(key, f"{_value(before, key)} → {_value(after, key)}") for key in sorted(amendment.changes)]
    rates = [learning_rate(contract.schedule, amendment.step) for contract in (before, after)]
    if rates[0] != rates[1]:
        changes.append((f"rate at step {amendment.step}", f"{rates[0]:.4g} → {rates[1]:.4g}"))
    changes.append(("rate at the end", f"{learning_rate(after.schedule, after.schedule.steps - 1):.4g}"))
    print_figures({"changes": changes} | dict(_consequences(arguments, before, after)))
    if not rates[1]:
        print("note: the rate is 0 from there on; to train again, give schedule.warmup_steps too")


def _value(contract: Contract, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(contract, section), name)


def _consequences(arguments: argparse.Namespace, before: Contract, after: Contract) -> Iterator[tuple[str, list[Row]]]:
    """The figures of `check` that the amendment changes, by what they are about."""
    facts = facts_of(before.model)
    swarm, memory_bytes = swarm_of(arguments, facts)
    rows: list[Mapping[str, list[Row]]] = []
    for contract in (before, after):
        plan = plan_of(contract, facts, DataFacts(), swarm, memory_bytes)
        rows.append(rows_of(plan, planner_of(contract).words_of(plan)))
    for title in dict.fromkeys(chain(*rows)):
        old, new = (dict(found.get(title, ())) for found in rows)
        differ = [
            (name, f"{old.get(name, 'nothing')} → {value}") for name, value in new.items() if old.get(name) != value
        ]
        if differ:
            yield title, differ
