"""Tests of leases: they are disjoint and in order, and a lost node's positions become free again."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.world import World
from support.rewound import played
from thinwire_coordinator.hall.leases import TRAINED_RUNS_MAX, Leases, SampleRange
from thinwire_proto.errors import LedgerError


def test_a_restarted_node_trains_again_on_positions_that_it_did_not_save() -> None:
    leases = Leases()
    leases.grant("a", 8, 0)
    leases.report("a", 5)
    leases.resume("a", 2)
    assert leases.granted("a") == (SampleRange(3, 5),)
    leases.resume("a", None)
    assert leases.granted("a") == (SampleRange(0, 8),)


def test_what_a_node_that_is_never_counted_has_trained_on_is_bounded() -> None:
    leases = Leases()
    for step in range(TRAINED_RUNS_MAX + 50):
        for node in ("a", "never counted"):
            last = leases.grant(node, 4, step)[-1]
            leases.report(node, last.start + last.count - 1)
        leases.settle("a")
    size = len(leases.packed())
    last = leases.grant("never counted", 4, 0)[-1]
    leases.report("never counted", last.start + last.count - 1)
    assert len(leases.packed()) <= size + 8
    leases.take_back("never counted")
    assert leases.grant("b", 4, 0) == (SampleRange(50 * 8 + 4, 4),)  # its newest are free again, in order


@pytest.mark.parametrize("torn", [None, [], [1, 2], [0, [[1]], []], [0, [], [["a", 1]]]])
def test_a_malformed_list_of_leases_is_an_error(torn: object) -> None:
    with pytest.raises(LedgerError, match="cannot read"):
        Leases.from_plain(torn)


def in_blocks(size: int) -> Leases:
    leases = Leases()
    leases.block = lambda position: range(position // size * size, (position // size + 1) * size)
    return leases


def test_a_node_stays_in_its_block_and_knows_the_next_one() -> None:
    leases = in_blocks(10)
    assert leases.grant("a", 4, 0) == (SampleRange(0, 4),)
    assert leases.reserved("a") == (SampleRange(4, 6), SampleRange(10, 10))
    assert leases.grant("b", 4, 0) == (SampleRange(20, 4),)
    leases.report("a", 3)
    assert leases.grant("a", 4, 1) == (SampleRange(4, 4),)
    leases.report("a", 7)
    assert leases.grant("a", 4, 2) == (SampleRange(8, 4),)  # the end of one block and the begin of the next
    assert leases.reserved("a") == (SampleRange(12, 8), SampleRange(40, 10))
    assert leases.grant("b", 25, 2) == (SampleRange(20, 20), SampleRange(50, 5))


def test_each_of_four_nodes_reads_a_quarter_of_the_blocks() -> None:
    leases = in_blocks(100)
    read: dict[str, set[int]] = {node: set() for node in "abcd"}
    for step in range(300):
        for node in "abcd":
            granted = leases.grant(node, 12, step)
            read[node] |= {run.start // 100 for run in granted}
            leases.report(node, granted[-1].start + granted[-1].count - 1)
            leases.settle(node)
    assert sum(map(len, read.values())) == len(set().union(*read.values())) == 144


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 12),
    st.lists(
        st.tuples(
            st.sampled_from(["grant", "report", "settle", "back", "give", "resume", "seen"]),
            st.integers(0, 4),
            st.integers(1, 9),
        ),
        max_size=60,
    ),
)
def test_no_position_ever_belongs_to_two_nodes(block: int, events: list[tuple[str, int, int]]) -> None:
    """Compares with a simple reference that keeps one state for each position. block: its size; 0: no blocks."""
    leases = in_blocks(block) if block else Leases()
    settled: set[int] = set()
    for what, number, size in events:
        node = "abcde"[number]
        granted = [position for run in leases.granted(node) for position in range(run.start, run.start + run.count)]
        mark = granted[min(size, len(granted)) - 1] if granted else None
        if what == "grant":
            leases.grant(node, size, 0)
        elif what == "report":
            leases.report(node, mark)
        elif what == "settle":
            settled |= set(_positions(_held(leases, node)[3])) if leases.holds(node) else set()
            leases.settle(node)
        elif what == "back":
            leases.take_back(node)
        elif what == "give":
            leases.give_back(node)
        elif what == "seen":
            leases.seen(node, size)
        else:
            leases.resume(node, mark)
        packed = leases.packed()
        assert packed == msgpack.packb(leases.plain())
        assert Leases.from_plain(msgpack.unpackb(packed)).plain() == leases.plain()  # survives a write and a read
        cursor, free, held = leases.plain()
        everywhere = _positions(free) + [p for _, _, *runs in held for part in runs for p in _positions(part)]
        assert len(set(everywhere)) == len(everywhere)
        assert set(everywhere) | settled == set(range(cursor))
        assert not set(everywhere) & settled


def _held(leases: Leases, node: str) -> list[object]:
    return next(entry for entry in leases.plain()[2] if entry[0] == node)


def _positions(runs: object) -> list[int]:
    assert isinstance(runs, list)
    return [position for start, count in runs for position in range(start, start + count)]


def test_a_contribution_that_was_not_counted_after_all_leaves_its_positions_trained_or_free() -> None:
    leases = Leases()
    for node in "ab":
        leases.grant(node, 8, 0)
    leases.report("a", 3)
    before = leases.plain()
    leases.unsettle("a", leases.settle("a"))
    assert leases.plain() == before
    settled = leases.settle("a")
    leases.report("a", 5)  # the next contribution
    leases.unsettle("a", settled)
    leases.take_back("a")
    assert leases.grant("c", 8, 0) == (SampleRange(0, 8),)  # nothing is lost
    leases.report("b", 15)
    settled = leases.settle("b")
    leases.take_back("b")
    leases.unsettle("b", settled)
    assert leases.grant("d", 8, 0) == (SampleRange(8, 8),)


def test_beginning_again_can_be_undone() -> None:
    leases = Leases()
    leases.grant("a", 8, 0)
    leases.grant("b", 8, 0)
    leases.report("a", 3)
    leases.settle("a")
    leases.report("a", 5)
    before = leases.plain()
    undo = leases.begin_again(3)
    assert leases.plain() == [1, [], []]  # of 16 positions, 4 were settled
    undo()
    assert leases.plain() == before


AWAY = """contract pace=clock length=10s momentum_age_max=5
start coordinator
nodes a b
start a b
until step 4
kill b
until step 20
"""


def test_others_get_the_samples_of_a_node_that_is_away_for_longer_than_its_momentum_counts() -> None:
    async def look(world: World) -> None:
        nodes = [volunteer.state.node_id for volunteer in world.volunteers.values()]
        leases = world.living_coordinator().swarm.hall.leases
        assert [leases.holds(node) for node in nodes] == [True, False]

    played(AWAY, look)
