"""Reads and compares contracts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from thinwire_proto.contract.contract import FORMAT, Contract
from thinwire_proto.contract.run import RunSpec
from thinwire_proto.contract.sections import CONTRACT_BYTES_MAX, canonical_json
from thinwire_proto.contract.unions import UNKNOWN_KIND
from thinwire_proto.errors import ContractError
from thinwire_proto.version import VERSION

UNKNOWN = ("extra_forbidden", UNKNOWN_KIND)
"""pydantic's error types for keys and kinds that another thinwire may know."""


def parse_contract(data: bytes) -> Contract:
    """Read a contract. Raises ContractError."""
    document = _document(data)
    version = document.get("version")
    if type(version) is not int:
        raise ContractError("this is not a contract: it does not say which version of the format it has")
    if version != FORMAT:
        raise ContractError(f"thinwire {VERSION} cannot read this contract: it has version {version}, not {FORMAT}")
    try:
        contract = Contract.model_validate(document)
    except ValidationError as error:
        raise ContractError(f"thinwire {VERSION} cannot read this contract: {plain(error)}{_hint(error)}") from None
    return contract.as_read_from(data)


def run_differences(held: Contract, run: RunSpec) -> list[str]:
    """The fields in which a run file differs from a run's contract, in words. See `differences`.

    What a run file leaves out, because the coordinator computes it, is as in the contract.
    """
    here, there = held.model_dump(mode="json"), run.model_dump(mode="json")
    for section, spec, asked in (("data", held.data, run.data), ("model", held.model, run.model)):
        if type(spec) is type(asked):
            there[section] |= {key: here[section][key] for key in (*spec.DERIVED, *spec.LOCAL)}
    there["model"] |= run.model.completed_like(held.model)
    found: list[str] = []
    for section in RunSpec.model_fields:
        ours, theirs = here[section], there[section]
        if ours.get("kind") != theirs.get("kind"):  # the keys of two kinds cannot be compared
            ours, theirs = {"kind": ours["kind"]}, {"kind": theirs["kind"]}
        found += _differences(ours, theirs, section)
    return found


def differences(ours: Contract, theirs: Contract) -> list[str]:
    """The fields in which two contracts differ, in words: `demo.k: 32 here, 64 there`."""
    left_out = {"version"}
    if ours.model != theirs.model:
        left_out.add("parameters")  # the model determines them
    here, there = (contract.model_dump(mode="json", exclude=left_out) for contract in (ours, theirs))
    return _differences(here, there, "")


def _document(data: bytes) -> dict[str, Any]:
    """Parse canonical JSON into an object. Raises ContractError."""
    if len(data) > CONTRACT_BYTES_MAX:
        raise ContractError(f"a contract has at most {CONTRACT_BYTES_MAX} bytes; this has {len(data)}")
    try:
        document = from_json(data, allow_inf_nan=False)
        written = canonical_json(document)
    except ValueError as error:
        raise ContractError(f"this is not a contract: {error}") from None
    if not isinstance(document, dict):
        raise ContractError("this is not a contract: it is not a JSON object")
    if written != data:
        raise ContractError("this is not a contract: its JSON is not canonical")
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


def _hint(error: ValidationError) -> str:
    """The end of an error text, where a key or a kind is unknown."""
    is_unknown = any(entry["type"] in UNKNOWN for entry in error.errors())
    return "; it needs another thinwire, or a package that extends it" if is_unknown else ""


def plain(error: ValidationError) -> str:
    """pydantic's errors in one line: for each the field's dotted name, the problem, and the given value."""
    found = []
    for entry in error.errors():
        field = ".".join(str(part) for part in entry["loc"])
        given = "" if isinstance(entry["input"], dict | BaseModel) else f" (it is {entry['input']!r:.80})"
        if entry["type"] == "extra_forbidden":
            found.append(f"{field}: there is no such key")
        elif entry["type"] == "value_error":
            found.append(f"{field + ': ' if field else ''}{entry['ctx']['error']}")
        else:
            found.append(f"{field}: {entry['msg'][0].lower()}{entry['msg'][1:]}{given}")
    return "; ".join(found)
