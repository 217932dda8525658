"""What a node compares when it joins, before it trains on anything."""

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
"""A contract of this version, of a model that this version would build with other tensors."""


class Agrees:
    """Takes any node in, into the run of one contract."""

    async def join(self, applicant: Applicant) -> Admission:
        return Admission(OTHER_MODEL, step=0)


@pytest.mark.parametrize("kept", [None, OTHER_MODEL], ids=["new", "kept"])
async def test_a_model_that_this_version_builds_otherwise_is_refused(tmp_path: Path, kept: Contract | None) -> None:
    """A node that kept its contract from before an upgrade learns it too, and not from a KeyError."""
    state = NodeState(tmp_path / "node")
    with pytest.raises(ContractError, match=r"parameters\.t0: shape none here, \(64, 128\) in the contract"):
        await join(cast(Exchange, Agrees()), state, Applicant(state.node_id, "a", kept))
    assert not state.path("contract.json").exists()
