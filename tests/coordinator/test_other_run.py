"""A node with another contract is told how it differs, however long that contract is."""

from __future__ import annotations

import pytest

from support.small import small_contract
from thinwire_coordinator.hall.rpc import messages as module
from thinwire_coordinator.hall.rpc.messages import COMPARED_FACTOR, COMPARED_MORE, other_run
from thinwire_proto.contract.sections import canonical_json

OURS = small_contract()


def test_a_different_value_is_named() -> None:
    theirs = OURS.model_copy(update={"demo": OURS.demo.model_copy(update={"k": 7})})
    text = other_run(OURS, canonical_json(theirs.model_dump(mode="json")))
    assert f"demo.k: {OURS.demo.k} here, 7 there" in text
    assert "another --state-dir" in text


def test_a_contract_of_another_size_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "parse_contract", lambda data: pytest.fail("it was read"))
    size = COMPARED_FACTOR * len(OURS.written) + COMPARED_MORE + 1
    assert f"{len(OURS.written)} bytes here, {size} there" in other_run(OURS, bytes(size))
