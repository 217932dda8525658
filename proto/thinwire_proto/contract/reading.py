"""Reading contracts and run files, and comparing two contracts."""

from __future__ import annotations

import logging
import re
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from thinwire_proto.contract import version_1
from thinwire_proto.contract.contract import FORMAT, Contract
from thinwire_proto.contract.run import UNIONS, RunSpec
from thinwire_proto.contract.sections import CONTRACT_BYTES_MAX, canonical_json
from thinwire_proto.contract.unions import UNKNOWN_KIND
from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.version import PATTERN, VERSION, is_newer

log = logging.getLogger("thinwire.contract")

UNKNOWN = ("extra_forbidden", UNKNOWN_KIND)
"""pydantic's errors for what a newer thinwire may know."""


def parse_contract(data: bytes) -> Contract:
    """Read a contract of any version that thinwire has had. Raises ContractError, which names the thinwire that is
    needed if this one is too old."""
    document = _document(data)
    version = document.get("version")
    is_version_1 = type(version) is int and version == 1
    if is_version_1:
        document = version_1.upgrade(document)
    needed = _needed(document)
    try:
        if not is_version_1 and (type(version) is not int or version != FORMAT):
            raise ContractError(f"this is not a contract that this version reads: it has version {version!r}{needed}")
        contract = Contract.model_validate(document)
    except ValidationError as error:
        because = needed if is_too_old(document) or _is_unknown(error) else ""
        raise ContractError(f"this is not a contract that this version reads: {_plain(error)}{because}") from None
    if is_too_old(document):
        raise ContractError(f"this contract cannot be read{needed}")
    return contract.as_read_from(data)


def parse_run(document: dict[str, Any], source: str) -> RunSpec:
    """Check a run file's contents. `source` names it in the ConfigError that a bad one raises.

    Old names of keys are read, and a warning says the new ones. A run file may say by `requires` which thinwire it
    needs.
    """
    renamed, hints = version_1.with_new_names(document)
    for hint in hints:
        log.warning("%s: %s", source, hint)
    needed = _needed(renamed)
    too_old = is_too_old(renamed)
    renamed.pop("requires", None)
    try:
        run = RunSpec.model_validate(renamed)
    except ValidationError as error:
        because = needed if too_old else f"; this is thinwire {VERSION}" if _is_unknown(error) else ""
        raise ConfigError(f"{source}: {_plain(error)}{because}") from None
    if too_old:
        raise ConfigError(f"{source}: the run cannot be read{needed}")
    return run


def contract_like(held: Contract, run: RunSpec) -> Contract:
    """The contract that a run file asks for, with what only the coordinator of `held` knows: manifest and data. What
    the file does not say has the meaning that it has in the format of `held`."""
    asked = run.model_dump()
    if type(held.data) is type(run.data):
        asked["data"] |= {key: getattr(held.data, key) for key in held.data.DERIVED}
    if held.version == 1:
        for section, meant in version_1.MEANT.items():
            said = getattr(run, section).model_fields_set
            asked[section] |= {key: value for key, value in meant.items() if key not in said}
    return Contract.model_validate(asked | {"parameters": held.parameters})


def differences(ours: Contract, theirs: Contract) -> list[str]:
    """The fields in which two contracts differ, in words: `demo.k: 32 here, 64 there`."""
    left_out = {"version", "requires"}
    if ours.model != theirs.model:
        left_out.add("parameters")  # they follow from the model
    here, there = (contract.model_dump(mode="json", exclude=left_out) for contract in (ours, theirs))
    return _differences(here, there, "")


def is_too_old(document: dict[str, Any]) -> bool:
    """Whether a contract or a run file says that it needs a newer thinwire than this."""
    requires = document.get("requires")
    return isinstance(requires, str) and bool(re.fullmatch(PATTERN, requires)) and is_newer(requires, VERSION)


def _needed(document: dict[str, Any]) -> str:
    """The end of an error's text: which thinwire is needed, and which this is."""
    requires = document.get("requires")
    if is_too_old(document):
        return f"; it needs thinwire {requires} or newer, and this is thinwire {VERSION}: update thinwire"
    says = f", though it says that thinwire {requires} knows it all" if isinstance(requires, str) else ""
    return f"; it needs another thinwire, or a package that extends it; this is thinwire {VERSION}{says}"


def _document(data: bytes) -> dict[str, Any]:
    """The JSON object that these bytes are, written in the one way that contracts are written in."""
    if len(data) > CONTRACT_BYTES_MAX:
        raise ContractError(f"a contract has at most {CONTRACT_BYTES_MAX} bytes; this has {len(data)}")
    try:
        document = from_json(data, allow_inf_nan=False)
        written = canonical_json(document)
    except ValueError as error:
        raise ContractError(f"this is not a contract: {error}") from None
    if not isinstance(document, dict):
        raise ContractError("this is not a contract: it is no JSON object")
    if written != data:
        raise ContractError("this is not a contract: its JSON is not written in the canonical way")
    return document


def _differences(ours: Any, theirs: Any, path: str) -> list[str]:
    if ours == theirs:
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found: list[str] = []
        for key in sorted(ours.keys() | theirs.keys()):
            found += _differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and path == "parameters":
        by_name = [{entry["name"]: entry["shape"] for entry in side} for side in (ours, theirs)]
        if by_name[0] != by_name[1]:
            return _differences(by_name[0], by_name[1], path)
    return [f"{path}: {ours} here, {theirs} there"]


def _is_unknown(error: ValidationError) -> bool:
    return any(entry["type"] in UNKNOWN for entry in error.errors())


def _plain(error: ValidationError) -> str:
    """pydantic's findings in one line: the field's dotted name, what is wrong, and what was given."""
    found = []
    for entry in error.errors():
        field = ".".join(str(part) for part in entry["loc"])
        given = "" if isinstance(entry["input"], dict | BaseModel) else f" (it is {entry['input']!r:.80})"
        if entry["type"] == "extra_forbidden":
            found.append(f"{field}: there is no such key{_where_it_is(entry['loc'])}")
        elif entry["type"] == "value_error":
            found.append(f"{field + ': ' if field else ''}{entry['ctx']['error']}")
        else:
            found.append(f"{field}: {entry['msg'][0].lower()}{entry['msg'][1:]}{given}")
    return "; ".join(found)


def _where_it_is(place: tuple[int | str, ...]) -> str:
    """For a key that another kind of its section has: which kind."""
    for union in UNIONS:
        if place[0] == union.section and len(place) == 2:
            kinds = [kind.name for kind in union if place[1] in kind.spec.model_fields]
            return f"; it is for {union.section}.kind = {', '.join(kinds)}" if kinds else ""
    return ""
