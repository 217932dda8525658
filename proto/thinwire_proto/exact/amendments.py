"""Amendments: what a run changes its mind about.

A contract is fixed by its hash, which names the run. The ledger says what changes: the row of step s has the amendments
that hold from the update of step s on, so they are hashed, chained and signed like every row. The contract in force at
a step is the first one with all amendments up to that step, in their order. docs/changing.md has the design.

Only keys that are marked `AMENDABLE` may change. The others determine the parameters, or what both ends have already
allotted for the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract.amendment import AMENDMENTS_MAX, Amendment, parse_amendment
from thinwire_proto.contract.contract import Contract
from thinwire_proto.contract.reading import plain
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
    if contract.exchange.kind != "star":
        raise ContractError(f"a run whose exchange is {contract.exchange.kind!r} cannot be amended")
    last = contract.amendments[-1] if contract.amendments else Amendment(0, {})
    if amendment.step < last.step or amendment.position < last.position:
        raise ContractError(f"an amendment of step {amendment.step} cannot follow one of step {last.step}")
    try:
        by_section = dict(_by_section(contract, amendment))
        sections = {name: _changed(contract, name, changes, amendment) for name, changes in by_section.items()}
        return contract.with_amendment(amendment, sections)
    except ValidationError as error:
        raise ContractError(plain(error)) from None
    except ValueError as error:
        raise ContractError(str(error)) from None


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


def amendable_keys(contract: RunSpec) -> list[str]:
    """The keys that may change in this run, dotted."""
    return [
        f"{section}.{key}"
        for section in RunSpec.model_fields
        for key, field in type(getattr(contract, section)).model_fields.items()
        if is_amendable(field.json_schema_extra)
    ]


def is_amendable(extra: Any) -> bool:
    """Whether a field's `json_schema_extra` says that the key may change within a run."""
    return isinstance(extra, dict) and bool(extra.get("amendable"))


def _by_section(contract: Contract, amendment: Amendment) -> Iterator[tuple[str, dict[str, Any]]]:
    found: dict[str, dict[str, Any]] = {}
    for key, value in amendment.changes.items():
        section, _, name = key.partition(".")
        fields = type(getattr(contract, section)).model_fields if section in RunSpec.model_fields else {}
        if name not in fields:
            later = f"; it needs thinwire {clean_text(amendment.version)}" if amendment.version != VERSION else ""
            raise ContractError(f"{clean_text(key)}: thinwire {VERSION} knows no such key of this run{later}")
        if not is_amendable(fields[name].json_schema_extra):
            raise ContractError(
                f"{key} cannot change within a run: `thinwire-coordinator branch` begins another one from it"
            )
        found.setdefault(section, {})[name] = value
    yield from found.items()


def _changed(contract: Contract, name: str, changes: Mapping[str, Any], amendment: Amendment) -> Section:
    section: Section = getattr(contract, name)
    if isinstance(section, ScheduleSpec):
        return section.bent(changes, amendment.step, share_reached(section, amendment.step))
    found = type(section).model_validate(section.model_dump() | dict(changes))
    if name == "demo" and found.sends_whole_tiles != contract.demo.sends_whole_tiles:  # type: ignore[attr-defined]
        raise ContractError(
            "demo.k cannot change between all components of a tile and fewer within a run: contributions then have "
            "another form"
        )
    return found
