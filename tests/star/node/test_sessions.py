"""What a node makes of the end of a session, and of what it finds when it begins the next one, in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from simulator import world as simulated
from simulator.machine import SimulatedMachine
from simulator.world import World
from support.rewound import SMALL, played
from thinwire_node.exchange.port import Surroundings
from thinwire_node.peer_settings import PeerSettings
from thinwire_node.settings import NodeOptions
from thinwire_node.star.exchange import Star
from thinwire_node.storage.state import NodeState

NO_ANSWER, PULLED = "Stream removed (ping timeout)", "the cable was pulled"
CUT = "Stream removed (recvmsg:Connection reset by peer (104))"
THIN = "line delay=100ms rate=2kbit\nnodes c\nline delay=20ms\n"


@pytest.mark.parametrize(
    ("while_fetching", "while_training", "thin_line"),
    [
        ([NO_ANSWER], "", True),
        ([PULLED, PULLED], "", False),
        ([], NO_ANSWER, False),
        ([CUT], "", False),
        ([CUT, CUT], "", True),
    ],
)
def test_a_node_whose_ping_was_not_answered_while_it_fetched_bounds_what_is_on_the_way_to_it(
    while_fetching: list[str], while_training: str, thin_line: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the coordinator's ping was not answered, it cuts the connection; but so does a restart of it."""
    thin: list[bool] = []
    open_exchange = SimulatedMachine.open_exchange

    def noted(machine: SimulatedMachine, surroundings: Surroundings) -> Star:
        if machine._name == "c":
            thin.append(surroundings.thin_line)
        return open_exchange(machine, surroundings)

    monkeypatch.setattr(SimulatedMachine, "open_exchange", noted)

    async def look(world: World) -> None:
        volunteer = world.volunteers["c"]
        world.start(volunteer)
        node = volunteer.node
        assert node is not None
        for why in while_fetching:
            await world.until(lambda: node.doing.startswith("fetching"), "it fetches")
            opened = len(thin)
            world.network.connections["c"].die(why)
            await world.until(lambda opened=opened: len(thin) > opened, "it connects again")  # type: ignore[misc]
        await world.until(lambda: node.session is not None, "it takes part")
        if while_training:
            world.network.connections["c"].die(while_training)
            await world.until(lambda: len(thin) == 2, "it connects again")
        assert thin == [*[False] * (len(thin) - 1), thin_line]

    played(SMALL + THIN + "until step 4\n", look)


@pytest.mark.parametrize("peers", [PeerSettings(7710), PeerSettings(dials=False), PeerSettings()])
def test_options_for_peers_are_said_to_have_no_effect_in_a_star_run(
    peers: PeerSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(simulated, "NodeOptions", partial(NodeOptions, peers=peers))

    async def look(world: World) -> None:
        assert caplog.text.count("--peers has no effect in this run") == 2 * (peers != PeerSettings())

    played(SMALL + "until step 2\n", look)


def test_a_momentum_is_dropped_if_the_list_of_sent_contributions_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise votes that are in an update already could be sent again."""

    async def look(world: World) -> None:
        volunteer = world.volunteers["b"]
        await world.leave(volunteer)
        assert volunteer.state.momentum({}) is not None
        volunteer.state.sent = lambda: None  # type: ignore[method-assign]
        with caplog.at_level(logging.INFO):
            world.start(volunteer)
        step = world.step
        await world.until(lambda: world.step > step + 2, "two rounds")
        told = [getattr(record, "event", None) for record in caplog.records]
        assert "node.momentum_dropped" in told
        assert "node.momentum_taken_up" not in told

    played(SMALL + "until step 4\n", look)


@pytest.mark.parametrize("lose", [lambda path: path.write_text('["6161'), Path.unlink], ids=["damaged", "lost"])
def test_a_list_of_sent_contributions_that_is_damaged_or_lost_is_unknown(
    tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    state = NodeState(tmp_path)
    (tmp_path / "momentum.safetensors").touch()
    state.save_sent([b"aa"])
    assert state.sent() == [b"aa"]
    lose(tmp_path / "sent.json")
    assert state.sent() is None
    state.close()
