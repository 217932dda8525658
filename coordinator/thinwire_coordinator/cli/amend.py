"""The commands `thinwire-coordinator amend` and `rewind`: change the contract of a run from one of its next steps on,
or go on from an earlier one."""

from __future__ import annotations

import argparse
import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from thinwire_coordinator.cli.evaluate import read_text
from thinwire_coordinator.cli.init import line_of, print_figures, swarm_of
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.creation import keep_blob
from thinwire_coordinator.hall.ledger.identity import open_existing_identity
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.standby.standing import check_orders
from thinwire_coordinator.kinds import kind_of
from thinwire_coordinator.planning.completion import facts_of
from thinwire_coordinator.planning.exchanges import plan_of, planner_of
from thinwire_coordinator.planning.facts import DataFacts
from thinwire_coordinator.planning.problems import read_toml
from thinwire_coordinator.planning.run_text import Row, rows_of
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import Contract
from thinwire_proto.contract.amendment import AGAIN, REWIND, SAMPLES, Amendment, value_in_words
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.contract.data.tokens import ADDED_SET_BYTES_MAX, HELD_OUT, TokensSpec
from thinwire_proto.contract.sections import canonical_json
from thinwire_proto.data.token_shards import TokenShards
from thinwire_proto.errors import ConfigError, ContractError, UsageError
from thinwire_proto.exact.amendments import amendable_keys, amended
from thinwire_proto.exact.schedule import learning_rate

ID_BYTES = 8


def amend(folder: Path, arguments: argparse.Namespace) -> None:
    """Order an amendment, or list those there are. Raises ThinwireError."""
    open_existing_identity(folder)
    with closing(open_state(folder, read_only=True)) as state, closing(AccessStore(folder)) as store:
        contract, kind = state.contract, kind_of(state.contract)
        waiting = store.amendments.all()
        if arguments.withdraw:
            if arguments.set or arguments.held_out or arguments.at is not None:
                raise UsageError("--withdraw is given alone: it withdraws all that wait")
            _withdraw(store, contract)
            return
        if not arguments.set and arguments.rewind is None and not arguments.held_out:
            _list(contract, waiting, kind.unit)
            return
        check_orders(folder)
        step = kind.first_amended(state)
        back: dict[str, Any] = {} if arguments.rewind is None else {REWIND: _kept(state, arguments.rewind)}
        back |= {SAMPLES: AGAIN} if arguments.samples_again else {}
        changes, blobs = dict(map(change_of, arguments.set)) | back, list[bytes]()
        if arguments.held_out:
            changes[HELD_OUT], blobs = _with_sets(state, waiting, arguments.held_out)
        order = Order(secrets.token_hex(ID_BYTES), changes, arguments.because, arguments.at)
        sealed = [amendment.id for amendment in contract.amendments]
        earlier = [one for one in waiting if not one.refused and one.id not in sealed]
        begins = max(step, order.at or 0)
        before = contract
        for one in sorted((one for one in earlier if (one.at or 0) <= begins), key=lambda one: one.at or 0):
            with suppress(ContractError):  # it will be refused, and changes nothing
                before = amended(before, _as_of(one, before, step))
        try:
            after = amended(before, _as_of(order, before, begins))
            state.data.amend(after)
        except ContractError as error:
            keys = amendable_keys(contract)
            known = "" if changes.keys() <= {REWIND, SAMPLES, *keys} else f"; these keys may change: {', '.join(keys)}"
            raise ConfigError(f"{error}{known}") from None
        _show(arguments, before, after)
        _tell_of_later(kind.unit, after, [one for one in earlier if (one.at or 0) > begins])
        if arguments.dry_run:
            print("nothing is ordered, because of --dry-run")
            return
        for data in blobs:
            keep_blob(state.blobs.folder, data)
        store.amendments.add(order, sealed)
    when = f"{kind.unit} {begins}" if begins > step else kind.soon(step)
    taken = "a coordinator that runs takes it up within seconds, another one when it starts"
    print(f"ordered: it holds from {when} on; {taken}; nodes follow by themselves")


def _withdraw(store: AccessStore, contract: Contract) -> None:
    withdrawn = store.amendments.withdraw([amendment.id for amendment in contract.amendments])
    for order in withdrawn:
        print(clean_text(f"withdrawn: {Amendment(0, order.changes, order.because).in_words}"))
    print("a coordinator that has just begun with one goes on with it" if withdrawn else "no amendment waits")


def _kept(state: RunState, step: int) -> int:
    """The step, unless the run can go back and this one is not kept. Raises ConfigError."""
    if not state.contract.exchange.may_change(REWIND):
        return step  # it is refused, whatever the step
    if not state.ledger.step:
        raise ConfigError("the run has no step yet, so it cannot go back")
    if 0 <= step < state.ledger.step and (why := state.why_not_kept(step)):
        raise ConfigError(why)
    return step


def _with_sets(state: RunState, orders: Sequence[Order], added: Sequence[str]) -> tuple[dict[str, Any], list[bytes]]:
    """The held-out sets that are added to the run's own, with those of NAME=FILE, and the tokens of these. Raises
    ConfigError."""
    if not isinstance(state.data, TokenShards) or not isinstance(state.contract.data, TokensSpec):
        raise ConfigError(
            "a held-out set can be added to data that `thinwire-coordinator prepare` made of text; `evaluate --text` "
            "measures the loss on other text once"
        )
    found: dict[str, Any] = state.contract.data.model_dump()["held_out"]
    blobs = []
    for order in orders:
        found |= {} if order.refused else order.changes.get(HELD_OUT, {})
    for text in added:
        name, equals, file = text.partition("=")
        if not equals or not name or not file:
            raise ConfigError(f"--held-out {text}: must be NAME=FILE")
        if name in found:
            raise ConfigError(f"--held-out {text}: there is a held-out set {name!r} already; give another name")
        content = read_text(Path(file))
        data, tokens = state.data.shard_of(content)
        if len(data) > ADDED_SET_BYTES_MAX:
            raise ConfigError(
                f"{file}: its {tokens:,} tokens take {len(data):,} bytes; a set that is added has at most "
                f"{ADDED_SET_BYTES_MAX:,}: a measurement reads a few samples of it, so give less text"
            )
        blobs.append(data)
        found[name] = Shard(
            hash=hashlib.sha256(data).hexdigest(), size=len(data), tokens=tokens, text_bytes=len(content.encode())
        ).model_dump()
    return found, blobs


def _as_of(order: Order, contract: Contract, step: int) -> Amendment:
    """The amendment as it will be if no step is sealed meanwhile."""
    last = contract.amendments[-1] if contract.amendments else Amendment(0, {})
    first = last.step if last.rewind is None else last.step + 1  # a row that goes back has no other update
    return Amendment(max(step, first, order.at or 0), order.changes, order.because, order.id, last.position)


def change_of(text: str) -> tuple[str, Any]:
    """KEY=VALUE, with a value as in a run file; text may go without its quotes."""
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise ConfigError(f"--set {text}: must be SECTION.KEY=VALUE, such as schedule.learning_rate=0.0009")
    found: Any = value.strip()
    with suppress(ValueError):
        found = read_toml(f"value = {value}")["value"]
    try:
        canonical_json(found)
    except TypeError:
        raise ConfigError(
            f"--set {text}: must be a number, a text, true or false, or a list or table of these"
        ) from None
    except ValueError:
        raise ConfigError(f"--set {text}: must have finite numbers only") from None
    if key.strip() == HELD_OUT:
        raise ConfigError(f"--set {text}: a held-out set is added with --held-out NAME=FILE")
    return key.strip(), found


def _list(contract: Contract, orders: Sequence[Order], unit: str) -> None:
    sealed = {amendment.id for amendment in contract.amendments}
    for amendment in contract.amendments:
        print(clean_text(f"from {unit} {amendment.step} on: {amendment.in_words}"))
    for order in (one for one in orders if one.id not in sealed):
        words = Amendment(0, order.changes, order.because).in_words
        waits = f"waits for {unit} {order.at}" if order.at else "waits for the coordinator"
        print(clean_text(f"refused: {words}: {order.refused}" if order.refused else f"{waits}: {words}"))
    if not contract.amendments and not orders:
        print("this run has no amendments; --set SECTION.KEY=VALUE makes one")


def _show(arguments: argparse.Namespace, before: Contract, after: Contract) -> None:
    """Print what changes, and what follows from it."""
    amendment = after.amendments[-1]
    keys, begins, back = set(amendment.changes) - {REWIND, SAMPLES}, amendment.step, amendment.rewind
    changes = []
    if back is not None:
        changes.append(("back", f"from step {begins} to step {back}; steps count on, and nodes drop their momentum"))
        if amendment.begins_samples_again:
            changes.append(("samples", "those of the steps that are given up come again"))
        keys.add("schedule.steps")
        begins += 1
    changes += [(key, f"{_value(before, key)} → {_value(after, key)}") for key in sorted(keys)]
    bends = any(key.startswith("schedule.") for key in keys)
    rates = [learning_rate(contract.schedule, begins) for contract in (before, after)]
    if rates[0] != rates[1]:
        changes.append((f"rate at {kind_of(after).unit} {begins}", f"{rates[0]:.4g} → {rates[1]:.4g}"))
    if bends:
        changes.append(("rate at the end", f"{learning_rate(after.schedule, after.schedule.steps - 1):.4g}"))
    consequences = dict(_consequences(arguments, before, after))
    print_figures({"changes": changes} | consequences)
    if consequences:
        up, down = line_of(arguments)
        nodes = f"{arguments.nodes} nodes with {up:g} Mbit/s up and {down:g} down"
        print(f"for the whole run of {nodes}; --nodes, --up, --down and --machine say otherwise")
    if bends and not rates[1]:
        print("note: the rate is 0 from there on; to train again, give schedule.warmup_steps too")


def _tell_of_later(unit: str, contract: Contract, orders: Sequence[Order]) -> None:
    """Print which amendments that wait will change again what the newest one changes, or come too late."""
    own = contract.amendments[-1].changes.keys()
    for order in orders:
        if (order.at or 0) >= contract.schedule.steps:
            words = Amendment(0, order.changes, order.because).in_words
            print(clean_text(f"note: the run will have ended when {words} would hold, from {unit} {order.at} on"))
        elif again := {key: order.changes[key] for key in sorted(own & order.changes.keys())}:
            words = Amendment(0, again).in_words
            print(clean_text(f"note: an amendment waits for {unit} {order.at}, and {words} holds from there on"))


def _value(contract: Contract, key: str) -> str:
    section, _, name = key.partition(".")
    return value_in_words(getattr(contract, section).model_dump()[name])


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
