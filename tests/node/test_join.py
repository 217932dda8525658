"""The checks of a node when it joins."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from support.small import shapes_contract
from thinwire_node.exchange.port import Admission, Applicant, Exchange
from thinwire_node.session.join import join
from thinwire_node.storage.state import NodeState
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ContractError

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
