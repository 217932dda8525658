"""All attacks at once on a real coordinator: it stays within its memory, and the honest nodes are counted on.

`make abuse` measures how long rounds take meanwhile; here nothing is timed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from abuse.attacks import ATTACKS
from abuse.attacks.members import BOMB_BYTES, bombs
from abuse.scenes import SCENES
from abuse.swarm_under_attack import NODES, attacked_swarm
from support.real import until
from support.small import small_contract
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.wire.codec import contribution_bytes_max, decode_votes

ROUNDS = 6
LAST = "bad enrolments"


@pytest.mark.timeout(600)  # a dozen processes beside those of other tests
def test_all_attacks_at_once(tmp_path: Path) -> None:
    with attacked_swarm(tmp_path, SCENES[0].run) as found:
        before, rounds = found.counted(), found.rounds()
        # joins are refused once many have failed, and all attacks come from one address
        attacks = [*found.begin(*(name for name in ATTACKS if name != LAST)), *found.begin(LAST)]
        until(
            lambda: found.rounds() >= rounds + ROUNDS,
            "rounds go on",
            found.coordinator,
            *attacks,
            progress=found.rounds,
        )
        for attack in attacks:
            assert found.end(attack), attack.text()  # it has sent something
        after = found.counted()
        assert all(after[name] > before[name] for name in NODES), (before, after)
        assert found.coordinator.running
        assert found.peak_bytes() <= found.bound_bytes
        said = found.coordinator.text()
        assert "Traceback" not in said
        assert '"level": "error"' not in said
        assert not [told for told in found.coordinator.events("coordinator.replica_differs") if told["name"] in NODES]


@pytest.mark.parametrize("number", range(3))
def test_a_bomb_is_one(number: int) -> None:
    """It fits into a contribution, and without a bound it would become much more than any contribution holds."""
    layout, bomb = TileLayout(small_contract().parameters), bombs()[number]
    assert len(bomb) < contribution_bytes_max(layout, small_contract().demo.k) < BOMB_BYTES // 100
    with pytest.raises(PayloadError):
        decode_votes(bomb, layout, small_contract().demo.k)
