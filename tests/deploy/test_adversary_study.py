"""`make bench-adversary`: attacks that a coordinator accepts, a study that continues, and a page from its results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.adversary.__main__ import RESULTS, results_in
from bench.adversary.attacks import ATTACKS, Knowledge
from bench.adversary.level_attacks import LEVEL_ATTACKS
from bench.adversary.report import page
from bench.adversary.run import play
from bench.adversary.scene import FULL, NOBODY, AdversarySize, Scene
from bench.convergence.arms import MERGED_MUON
from bench.studies import append
from support.small import random_votes, shapes_contract
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import WholeVotes
from thinwire_proto.wire.codec import decode_votes, encode_votes

DOCS = Path(__file__).resolve().parents[2] / "docs"
LAYOUT = TileLayout(shapes_contract().parameters)
K, LEVELS = 16, 3
TINY = AdversarySize(context=16, samples=1, rounds=3, present=8, held_out=8)


def known(number: int, turn: int) -> Knowledge:
    return Knowledge(
        number=number,
        round=turn,
        layout=LAYOUT,
        k=K,
        own=random_votes(LAYOUT, K, 100 * turn + number),
        earlier=[random_votes(LAYOUT, K, 100 * before + number) for before in range(turn)],
        others=[random_votes(LAYOUT, K, 10_000 + 100 * turn + other) for other in range(5)],
        drawn=np.random.default_rng(turn),
        agreed=np.random.default_rng(turn),
    )


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("turn", [0, 9])
def test_a_coordinator_accepts_what_an_attack_sends(attack: str, turn: int) -> None:
    """Otherwise the study would measure the codec."""
    votes = ATTACKS[attack](known(2, turn))
    decoded = decode_votes(encode_votes(votes, LAYOUT), LAYOUT, K)
    assert np.array_equal(decoded.components, votes.components)
    assert np.array_equal(decoded.positive, votes.positive)
    assert len(votes) == 1 or len(votes) > LAYOUT.tiles


@pytest.mark.parametrize("attack", LEVEL_ATTACKS)
@pytest.mark.parametrize("turn", [0, 9])
def test_a_coordinator_accepts_what_an_attack_with_levels_sends(attack: str, turn: int) -> None:
    votes = LEVEL_ATTACKS[attack](replace(known(2, turn), k=4096, **leveled(turn)))
    assert isinstance(votes, WholeVotes)
    decoded = decode_votes(encode_votes(votes, LAYOUT), LAYOUT, 4096, "tile", whole=True, levels=LEVELS)
    assert isinstance(decoded, WholeVotes)
    assert np.array_equal(decoded.signs, votes.signs)
    assert decoded.codes is not None
    assert votes.codes is not None
    assert np.array_equal(decoded.codes, votes.codes)


def leveled(turn: int) -> dict[str, Any]:
    """Votes in levels in place of those of `known`, each with a size of its own in each tile."""
    drawn = np.random.default_rng(turn)

    def votes() -> WholeVotes:
        values = drawn.integers(-LEVELS, LEVELS, LAYOUT.components, np.int8, endpoint=True)
        return WholeVotes(values, drawn.integers(0, 200, LAYOUT.tiles).astype(np.uint8), LEVELS)

    return {"own": votes(), "earlier": [votes() for _ in range(turn)], "others": [votes() for _ in range(5)]}


@pytest.mark.parametrize(
    "scene",
    [
        Scene(True, "flip", 2, 1, TINY),
        Scene(True, "collude", 2, 1, TINY),
        Scene(False, NOBODY, 2, 1, TINY),
        Scene(True, "shout", 2, 1, TINY, MERGED_MUON),
    ],
    ids=lambda scene: scene.name,
)
def test_a_scene_plays_and_its_result_is_read_back(scene: Scene, tmp_path: Path) -> None:
    result = play(scene)
    assert len(result.nodes) == (6 if scene.alone else 8)
    assert [node.hostile for node in result.nodes] == [False] * 6 + [True] * (len(result.nodes) - 6)
    assert result.curve[-1][0] == 3 * 6 * 16
    assert replace(play(scene), seconds=result.seconds) == result
    append(tmp_path / RESULTS, result)
    assert results_in(tmp_path) == {scene: result}


def test_the_page_follows_from_the_recorded_results() -> None:
    folder = DOCS / "adversary"
    assert (folder / "README.md").read_text(encoding="utf-8") == page(FULL, results_in(folder))
