"""Amendments: what a run changes its mind about.

A contract is fixed by its hash, which names the run. The ledger says what changes: the row of step s has the amendments
that hold from the update of step s on, so they are hashed, chained and signed like every row. The contract in force at
a step is the first one with all amendments up to that step, in their order. docs/changing.md has the design.

In a gossip run, steps are iterations of the nodes and rows are beats. So an amendment is in the row of the beat in
which it was decided, before any node is at its step.

Only keys that are marked `AMENDABLE` may change. The others determine the parameters, or what both ends have already
allotted for the whole run.

An amendment may also go back (`REWIND`): its row, of step n, then has an update that nobody applies, and θ_{n+1} is θ_s
of an earlier step s. So steps count on, and the ledger has both the steps that were given up and those that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from pydantic import ValidationError

from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract.amendment import AGAIN, AMENDMENTS_MAX, REWIND, SAMPLES, Amendment, parse_amendment
from thinwire_proto.contract.contract import Contract, plain
from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.run import RunSpec
from thinwire_proto.contract.schedule import ScheduleSpec
from thinwire_proto.contract.sections import Section
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.schedule import share_reached
from thinwire_proto.version import VERSION

ROW_KEY = "amendments"
"""The optional field of a row that has its amendments: a list of `Amendment.written`."""


def amended(contract: Contract, amendment: Amendment) -> Contract:
    """The contract with one more amendment. Raises ContractError if it cannot have it."""
    parse_amendment(amendment.written)  # what cannot be read again must not begin
    if len(contract.amendments) >= AMENDMENTS_MAX:
        raise ContractError(f"a run has at most {AMENDMENTS_MAX} amendments")
    _check_exchange(contract, amendment)
    last = contract.amendments[-1] if contract.amendments else Amendment(0, {})
    if amendment.step < last.step or amendment.position < last.position:
        raise ContractError(f"an amendment of step {amendment.step} cannot follow one of step {last.step}")
    _check_rewind(amendment, last)
    _check_samples(contract, amendment)
    with _in_words():
        return contract.with_amendment(amendment, _changed_sections(contract, amendment))


def amended_run(run: RunSpec, amendment: Amendment) -> RunSpec:
    """The run of a file with the sections that an amendment leaves; it cannot go back. Raises ContractError."""
    parse_amendment(amendment.written)
    _check_exchange(run, amendment)
    with _in_words():
        kept = {name: getattr(run, name) for name in RunSpec.model_fields}
        return RunSpec.model_validate(kept | _changed_sections(run, amendment))


@contextmanager
def _in_words() -> Iterator[None]:
    """Raise ContractError for what a section refuses."""
    try:
        yield
    except ValidationError as error:
        raise ContractError(plain(error)) from None
    except ValueError as error:
        raise ContractError(str(error)) from None


def _check_exchange(contract: RunSpec, amendment: Amendment) -> None:
    """Raise ContractError if runs of this exchange cannot have such amendments."""
    kind, keys = contract.exchange.kind, amendable_keys(contract)
    if not keys:
        raise ContractError(f"a run whose exchange is {kind!r} cannot be amended")
    if REWIND in amendment.changes and not contract.exchange.may_change(REWIND):
        raise ContractError(
            f"a run whose exchange is {kind!r} cannot go back, since no parameters of an earlier step are kept; "
            "`thinwire-coordinator branch` begins another one from its first state or its final mean"
        )
    if wrong := [key for key in _marked_keys(contract) if key in amendment.changes and key not in keys]:
        raise ContractError(f"{', '.join(wrong)} cannot change within a run whose exchange is {kind!r}")


def _check_rewind(amendment: Amendment, last: Amendment) -> None:
    """Raise ContractError if an amendment goes back to what is no earlier step, or follows one of its row that does."""
    if last.rewind is not None and amendment.step == last.step:
        raise ContractError(f"step {last.step} goes back to step {last.rewind}, so nothing else can begin with it")
    if REWIND in amendment.changes and not (type(amendment.rewind) is int and 0 <= amendment.rewind < amendment.step):
        raise ContractError(
            f"the run is at step {amendment.step}, so it can go back to steps 0 to {amendment.step - 1}; not to "
            f"{amendment.rewind}"
        )


def _check_samples(contract: Contract, amendment: Amendment) -> None:
    """Raise ContractError if an amendment cannot begin samples again."""
    if not amendment.begins_samples_again:
        return
    if amendment.rewind is None or amendment.changes[SAMPLES] != AGAIN:
        raise ContractError(f"{SAMPLES} can only be {AGAIN!r}, in an amendment that goes back to an earlier step")
    if not is_in_history(contract, amendment.rewind, amendment.step):
        raise ContractError(
            f"step {amendment.rewind} was given up, so samples cannot begin with it again; they go on where the leases "
            "stand"
        )


def given_up(contract: Contract, back: int, step: int) -> list[tuple[int, int]]:
    """The rows that a run at a step gives up if it goes back to one of its own history: [first, end), ascending."""
    return [(max(first, back), last) for first, last in history(contract, step) if last > back]


def amended_by(contract: Contract, amendments: Iterable[bytes]) -> Contract:
    """The contract with further amendments, as they were written. Raises ContractError."""
    for data in amendments:
        contract = amended(contract, parse_amendment(data))
    return contract


def amendments_in(extras: Mapping[str, Any]) -> list[bytes]:
    """The amendments among the optional fields of a row, as they were written. Raises ContractError."""
    found = extras.get(ROW_KEY, [])
    if not isinstance(found, list) or not all(type(one) is bytes for one in found):
        raise ContractError("the row's amendments are not a list of bytes")
    return found


def rewind_of(extras: Mapping[str, Any]) -> int | None:
    """The step that a row goes back to, from its optional fields. Raises ContractError."""
    found = [amendment.rewind for amendment in map(parse_amendment, amendments_in(extras))]
    return next((step for step in found if step is not None), None)


def row_extras(contract: Contract, step: int) -> dict[str, Any]:
    """The optional fields of the row of a step, with the amendments that hold from it on."""
    begins = [amendment.written for amendment in contract.amendments if amendment.step == step]
    return {ROW_KEY: begins} if begins else {}


def contract_at(contract: Contract, step: int) -> Contract:
    """The contract in force for the update of a step: without later amendments."""
    found = contract
    while found.before is not None and found.amendments[-1].step > step:
        found = found.before
    return found


def rewinds(contract: Contract) -> dict[int, int]:
    """The steps whose rows bring back the parameters of an earlier one, ascending, each with that step."""
    return {one.step: one.rewind for one in contract.amendments if one.rewind is not None}


class Stretch(NamedTuple):
    """Steps that follow from each other: the parameters of `first`, and all after it up to those of `last`."""

    first: int
    last: int


def history(contract: Contract, step: int) -> list[Stretch]:
    """The steps that led to the parameters of a step, oldest first, without those that were given up. Each stretch but
    the first begins with the parameters that the one before it ends with."""
    found = []
    for at, back in reversed(rewinds(contract).items()):
        if at < step:
            found.append(Stretch(at + 1, step))
            step = back
    return [Stretch(0, step), *reversed(found)]


def is_in_history(contract: Contract, step: int, of: int) -> bool:
    """Whether the parameters of a step led to those of the step `of`."""
    return any(first <= step <= last for first, last in history(contract, of))


def amendable_keys(contract: RunSpec) -> list[str]:
    """The keys that may change in this run, dotted."""
    return [key for key in _marked_keys(contract) if contract.exchange.may_change(key)]


def _marked_keys(contract: RunSpec) -> list[str]:
    """The keys of this run that may change with some exchange."""
    return [
        f"{section}.{key}"
        for section in RunSpec.model_fields
        for key, field in type(getattr(contract, section)).model_fields.items()
        if is_amendable(field.json_schema_extra)
    ]


def is_amendable(extra: Any) -> bool:
    """Whether a field's `json_schema_extra` says that the key may change within a run."""
    return isinstance(extra, dict) and bool(extra.get("amendable"))


def _changed_sections(run: RunSpec, amendment: Amendment) -> dict[str, Section]:
    by_section = dict(_by_section(run, amendment))
    if amendment.rewind is not None:
        by_section.setdefault("schedule", {})
    return {name: _changed(run, name, changes, amendment) for name, changes in by_section.items()}


def _by_section(run: RunSpec, amendment: Amendment) -> Iterator[tuple[str, dict[str, Any]]]:
    found: dict[str, dict[str, Any]] = {}
    for key, value in amendment.changes.items():
        if key in (REWIND, SAMPLES):
            continue
        section, _, name = key.partition(".")
        fields = type(getattr(run, section)).model_fields if section in RunSpec.model_fields else {}
        if name not in fields:
            later = f"; it needs thinwire {clean_text(amendment.version)}" if amendment.version != VERSION else ""
            raise ContractError(f"{clean_text(key)}: thinwire {VERSION} knows no such key of this run{later}")
        if not is_amendable(fields[name].json_schema_extra):
            raise ContractError(
                f"{key} cannot change within a run: `thinwire-coordinator branch` begins another one from it"
            )
        found.setdefault(section, {})[name] = value
    yield from found.items()


def _changed(run: RunSpec, name: str, changes: Mapping[str, Any], amendment: Amendment) -> Section:
    section: Section = getattr(run, name)
    if isinstance(section, ScheduleSpec):
        begins = amendment.step
        if amendment.rewind is not None:  # the row of the step itself has no update to apply
            assert isinstance(run, Contract)
            begins += 1
            moved = section.moved - contract_at(run, amendment.rewind - 1).schedule.moved
            section = section.gone_back(amendment.rewind + moved, begins)
            if section.steps < begins and "steps" not in changes:
                raise ContractError(
                    f"step {amendment.rewind} is past the end that the schedule has now, so no step would be left; "
                    "give schedule.steps too"
                )
        return section.bent(changes, begins, share_reached(section, begins)) if changes else section
    found = type(section).model_validate(section.model_dump() | dict(changes))
    if isinstance(found, DemoSpec):
        _check_form(run.demo, found)
    return found


def _check_form(demo: DemoSpec, changed: DemoSpec) -> None:
    """Raise ContractError if contributions or updates would have another form."""
    for key in ("update_levels", "vote_levels"):
        if bool(getattr(demo, key)) != bool(getattr(changed, key)):
            raise ContractError(
                f"demo.{key} cannot change between 0 and more within a run: what travels then has another form"
            )
    if changed.sends_whole_tiles != demo.sends_whole_tiles:
        raise ContractError(
            "demo.k cannot change between all components of a tile and fewer within a run: contributions then have "
            "another form"
        )
