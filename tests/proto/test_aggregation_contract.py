"""The aggregation rule as a part of the contract, and of contracts from before there were rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.small import small_contract
from thinwire_proto.contract import (
    QuorumSpec,
    RunSpec,
    VoteSpec,
    canonical_json,
    contract_like,
    differences,
    parse_contract,
    parse_run,
)
from thinwire_proto.errors import ConfigError, ContractError


def test_the_rule_is_a_part_of_the_contract_and_vote_is_the_default() -> None:
    plain = small_contract()
    assert plain.aggregation.kind == "vote"
    assert plain == small_contract(aggregation={"kind": "vote"})
    contract = small_contract(aggregation={"kind": "quorum", "percent": 25})
    assert contract.hash not in (plain.hash, small_contract(aggregation={"kind": "quorum"}).hash)
    assert parse_contract(contract.written) == contract
    assert contract.requires == "0.3.0"


@pytest.mark.parametrize("given", [None, {}, {"kind": "vote"}])
def test_a_contract_from_before_the_rules_keeps_its_bytes_and_means_vote(given: dict[str, Any] | None) -> None:
    """It also means that each vote has the size that its node sent, and a run file without the key still matches it."""
    document = json.loads(small_contract().written)
    del document["aggregation"]
    if given is not None:
        document["aggregation"] = given
    document["requires"] = "0.2.0"
    old = parse_contract(canonical_json(document))
    assert old.written == canonical_json(document)
    assert (old.requires, old.aggregation) == ("0.2.0", VoteSpec(sizes="own"))
    for run_file in ({}, {"aggregation": {"kind": "vote"}}):
        assert contract_like(old, RunSpec.model_validate(run_file)).aggregation == VoteSpec(sizes="own")
    asked = contract_like(old, RunSpec.model_validate({"aggregation": {"sizes": "median"}}))
    assert differences(old, asked)[:1] == ["aggregation.sizes: own here, median there"]
    quorum = contract_like(old, RunSpec.model_validate({"aggregation": {"kind": "quorum"}}))
    assert quorum.aggregation == QuorumSpec()


def test_a_new_contract_has_median_sizes_and_its_run_file_matches_it() -> None:
    contract = small_contract()
    assert contract.aggregation == VoteSpec(sizes="median")
    assert json.loads(contract.written)["aggregation"] == {"kind": "vote", "sizes": "median"}
    own = small_contract(aggregation={"sizes": "own"})
    assert own.hash != contract.hash
    assert contract_like(own, RunSpec()).aggregation == VoteSpec(sizes="median")
    assert parse_contract(own.written).aggregation == VoteSpec(sizes="own")


def test_a_rule_that_this_thinwire_does_not_have_is_refused() -> None:
    document = json.loads(small_contract().written)
    document["aggregation"] = {"kind": "median"}
    document["requires"] = "9.0.0"
    with pytest.raises(ContractError, match=r"there are quorum, trimmed, vote .*needs thinwire 9\.0\.0 or newer"):
        parse_contract(canonical_json(document))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"aggregation": {"kind": "krum"}}, "there is no such kind; there are quorum, trimmed, vote"),
        ({"aggregation": {"percent": 10}}, "there is no such key; it is for aggregation.kind = quorum, trimmed"),
        ({"aggregation": {"kind": "quorum", "percent": 0}}, "aggregation.percent: input should be greater than or"),
        ({"aggregation": {"kind": "trimmed", "percent": 50}}, "aggregation.percent: input should be less than or"),
        ({"aggregation": {"kind": "quorum", "percent": 12.5}}, "aggregation.percent: input should be a valid integer"),
    ],
)
def test_a_bad_run_file_says_what_to_change(document: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=r"^RUN\.toml: ") as error:
        parse_run(document, "RUN.toml")
    assert said in str(error.value)
