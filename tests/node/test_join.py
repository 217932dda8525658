"""The checks of a node when it joins."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from support.small import shapes_contract, small_contract
from thinwire_node.exchange.port import Admission, Applicant, Exchange
from thinwire_node.session.join import fetch_data, join
from thinwire_node.storage.state import NodeState
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ContractError, PayloadError

OTHER_MODEL = shapes_contract()
"""A contract whose tensors differ from those that this version builds for its model."""


class Agrees:
    """An exchange that admits every node to one run."""

    async def join(self, applicant: Applicant) -> Admission:
        return Admission(OTHER_MODEL, step=0)


@pytest.mark.parametrize("kept", [None, OTHER_MODEL], ids=["new", "kept"])
async def test_a_node_refuses_a_contract_whose_model_it_builds_differently(
    tmp_path: Path, kept: Contract | None
) -> None:
    """A node with a contract from before an upgrade gets this error too, not a KeyError."""
    state = NodeState(tmp_path / "node")
    with pytest.raises(ContractError, match=r"parameters\.t0: shape none here, \(64, 128\) in the contract"):
        await join(cast(Exchange, Agrees()), state, Applicant(state.key, "a", kept))
    assert not state.path("contract.json").exists()


class BreaksOff:
    """An exchange that sends half of the data's file."""

    async def corpus(self, contract: Contract) -> bytes:
        return b"half"


async def test_the_size_that_is_told_is_that_of_one_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of prepared data it is a list of shards, which come later, and are thousands of times as large."""
    state = NodeState(tmp_path / "node")
    with caplog.at_level("INFO", "thinwire.node"), pytest.raises(PayloadError):
        await fetch_data(cast(Exchange, BreaksOff()), state, small_contract())
    assert "fetching the data's file (at most " in caplog.text
    assert "shards that it lists come as they are needed" in caplog.text
    state.close()
