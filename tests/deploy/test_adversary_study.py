"""`make bench-adversary`: attacks that a coordinator accepts, a study that continues, and a page from its results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.adversary.__main__ import RESULTS, results_in
from bench.adversary.attacks import ATTACKS, Knowledge
from bench.adversary.report import page, relative, write_report
from bench.adversary.run import NodeRecord, SceneResult, play
from bench.adversary.scene import FULL, NOBODY, AdversarySize, Scene, Study
from bench.studies import append
from support.small import random_votes, shapes_contract
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.wire.codec import decode_votes, encode_votes

DOCS = Path(__file__).resolve().parents[2] / "docs"
LAYOUT = TileLayout(shapes_contract().parameters)
K = 16
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


@pytest.mark.parametrize(
    "scene",
    [
        Scene(True, "flip", 2, 1, TINY),
        Scene(True, "collude", 2, 1, TINY),
        Scene(False, NOBODY, 2, 1, TINY),
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


def test_a_page_says_by_how_much_a_goal_is_missed(tmp_path: Path) -> None:
    study = Study(hostile=(4,))
    results = {}
    for scene in study.scenes():
        nodes = [NodeRecord(number >= scene.honest, None, 0, 0, {}) for number in range(16)]
        if scene.trusting and scene.hostile:
            nodes[12:] = [NodeRecord(True, 60, 40, 1, {})] * 4
        loss = 2.0 if scene.alone else 2.1
        results[scene] = SceneResult(scene, [(1000, 3.0), (2000, loss)], loss, nodes, 1.0)
    flip = results[Scene(True, "flip", 4, 1)]
    assert relative(flip, results) == pytest.approx(0.05)
    text = page(study, results)
    assert "| `vote` + trust | +5.0% (flip); missed by 3.0 points | 60 (stale); missed by 10 rounds | 0 | 0 |" in text
    del results[flip.scene]
    write_report(study, results, tmp_path)
    assert "**1 scenes are still to be played.**" in (tmp_path / "README.md").read_text()


def test_the_page_follows_from_the_recorded_results() -> None:
    folder = DOCS / "adversary"
    assert (folder / "README.md").read_text(encoding="utf-8") == page(FULL, results_in(folder))
