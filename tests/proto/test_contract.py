"""Tests of the contract: validation, canonical form, and named differences."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from support.small import small_contract
from thinwire_proto.contract import RunSpec, differences, parse_contract
from thinwire_proto.errors import ContractError
from thinwire_proto.models import check_manifest


def test_a_contract_reads_back_from_its_canonical_form() -> None:
    contract = small_contract()
    again = parse_contract(contract.written)
    assert again == contract
    assert again.hash == contract.hash
    assert len(contract.hash) == 32


def test_each_field_changes_the_hash() -> None:
    contract = small_contract()
    for changed in (
        small_contract(demo={"k": 31}),
        small_contract(demo={"beta": 0.5}),
        small_contract(schedule={"learning_rate": 5e-3}),
        small_contract(round={"length_ms": 1000}),
    ):
        assert changed.hash != contract.hash


def test_differences_are_named_with_both_values() -> None:
    ours, theirs = small_contract(demo={"k": 16}), small_contract(round={"pace": "clock"})
    assert differences(ours, theirs) == [
        "demo.k: 16 here, 96 there",
        "round.base_age_max: 0 here, 1 there",
        "round.pace: barrier here, clock there",
    ]
    assert differences(ours, ours) == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"schedule": {"steps": 5, "warmup_steps": 5}}, "warmup_steps must be less than steps; 5 is not less than 5"),
        ({"schedule": {"learning_rate": float("nan")}}, "schedule.learning_rate"),
        ({"schedule": {"learning_rate": 0.5, "weight_decay": 2.0}}, "learning_rate · weight_decay must be less than 1"),
        ({"schedule": {"learning_rate": 0.3, "weight_decay": 3.3333333}}, "learning_rate · weight_decay must be less"),
        ({"schedule": {"learning_rate": 0.7, "weight_decay": 1 / 0.7}}, "learning_rate · weight_decay must be less"),
        ({"schedule": {"learning_rate": 1e-38}}, "learning_rate must be at least 1.175e-38, the smallest normal"),
        ({"round": {"nodes_max": 8000, "weight_max": 8}}, "nodes_max · weight_max must be at most 32767"),
        ({"round": {"nodes_max": 2, "min_contributions": 3}}, "min_contributions must be at most nodes_max"),
        ({"model": {"width": 100, "heads": 3}}, "width must be a multiple of 2·heads; 100 is not one of 6"),
        ({"model": {"vocabulary": 255}}, "model.vocabulary must be at least 256"),
        (
            {"rule": {"kind": "local_adamw"}, "demo": {"magnitude": "sign"}},
            'demo.magnitude must be "tile" for rule.kind = "local_adamw"',
        ),
        (
            {"rule": {"kind": "local_adamw"}, "demo": {"precondition": "adam"}},
            'demo.precondition must be "none" for rule.kind = "local_adamw"',
        ),
        ({"rule": {"outer_rate": 0.7}}, 'rule.outer_rate needs demo.magnitude = "tile"'),
    ],
)
def test_a_bad_run_file_names_the_field_and_the_relation(document: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as error:
        RunSpec.model_validate(document)
    assert said in str(error.value)


def test_a_rule_sets_defaults_and_given_keys_stay() -> None:
    run = RunSpec.model_validate({"rule": {"kind": "local_adamw"}, "demo": {"k": 64}})
    assert (run.demo.magnitude, run.demo.precondition, run.demo.k) == ("tile", "none", 64)
    assert RunSpec.model_validate({"rule": {"kind": "demo"}}).demo == RunSpec().demo
    contract = small_contract(rule={"kind": "local_adamw"})
    assert parse_contract(contract.written) == contract
    assert contract.hash != small_contract().hash


def test_a_manifest_that_differs_from_our_model_names_the_tensor() -> None:
    contract = small_contract()
    check_manifest(contract)
    first, *rest = contract.parameters
    other = contract.model_copy(update={"parameters": (first.model_copy(update={"shape": (256, 65)}), *rest)})
    with pytest.raises(ContractError, match=r"parameters\.embedding\.weight"):
        check_manifest(other)
