"""The checks of a node when it joins."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest

from support.small import shapes_contract
from thinwire_node.bootstrap import Bootstrap
from thinwire_node.exchange.port import Admission, Applicant, Exchange
from thinwire_node.machine import RealMachine
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_proto.errors import ContractError

OTHER_MODEL = shapes_contract()
"""A contract whose tensors differ from those that this version builds for its model."""


class Agrees:
    """An exchange that admits every node to one run."""

    async def join(self, applicant: Applicant) -> Admission:
        return Admission(OTHER_MODEL, step=0)


@pytest.mark.parametrize("is_kept", [False, True], ids=["new", "kept"])
async def test_a_node_refuses_a_contract_whose_model_it_builds_differently(tmp_path: Path, is_kept: bool) -> None:
    """A node with a contract from before an upgrade gets this error too, not a KeyError."""
    settings = NodeSettings("127.0.0.1:1", tmp_path, "cpu", NodeOptions("a", 8, None), None)
    machine = RealMachine(tmp_path, "cpu")
    state = machine.open_state()
    if is_kept:
        state.write("contract.json", OTHER_MODEL.written)
    bootstrap = Bootstrap(settings, machine, state, Record(), random.Random(1), lambda doing: None)
    with pytest.raises(ContractError, match=r"parameters\.t0: shape none here, \(64, 128\) in the contract"):
        await bootstrap.join(cast(Exchange, Agrees()), "a")
    assert state.path("contract.json").exists() == is_kept
    state.close()
