"""`make bench-adversary`: attacks that a coordinator accepts, a study that continues, and a page from its results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.adversary.__main__ import read, write
from bench.adversary.attacks import ATTACKS, Knowledge
from bench.adversary.report import page, relative, write_report
from bench.adversary.run import NodeRecord, SceneResult, play
from bench.adversary.scene import FULL, NOBODY, AdversarySize, Scene, Study
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


def test_colluders_agree_on_half_of_their_votes_and_opponents_contradict_the_majority() -> None:
    first, second = (ATTACKS["collude"](known(number, 3)) for number in range(2))
    shared = np.intersect1d(2 * first.components + first.positive, 2 * second.components + second.positive)
    assert len(shared) >= LAYOUT.tiles * K // 2
    total = np.zeros(LAYOUT.components, int)
    for votes in known(0, 3).others:
        total[votes.components] += np.where(votes.positive, 1, -1)
    sent = ATTACKS["oppose"](known(0, 3))
    against = total[sent.components] * np.where(sent.positive, 1, -1)
    strong = np.abs(total[sent.components]) >= 2
    assert strong.sum() > 5
    assert (against[strong] < 0).mean() > 0.9


@pytest.mark.parametrize(
    "scene",
    [
        Scene("vote", True, "flip", 2, 1, TINY),
        Scene("vote", True, "collude", 2, 1, TINY),
        Scene("vote", False, NOBODY, 2, 1, TINY),
        Scene("mean", False, "random", 2, 1, TINY),
    ],
    ids=lambda scene: scene.name,
)
def test_a_scene_plays_and_its_result_is_read_back(scene: Scene, tmp_path: Path) -> None:
    study = Study(TINY)
    result = play(scene)
    assert len(result.nodes) == (6 if scene.alone else 8)
    assert [node.hostile for node in result.nodes] == [False] * 6 + [True] * (len(result.nodes) - 6)
    assert result.curve[-1][0] == 3 * 6 * 16
    assert replace(play(scene), seconds=result.seconds) == result
    if scene in study.scenes():
        write(tmp_path / "results.json", study, {scene.name: result})
        assert read(tmp_path / "results.json", study) == {scene.name: result}
        assert read(tmp_path / "results.json", Study(replace(TINY, rounds=4))) == {}


def test_without_a_judge_a_node_that_shouts_moves_the_mean_and_not_the_vote() -> None:
    size = replace(TINY, rounds=20, samples=2, held_out=32)
    lost = {}
    for rule in ("vote", "mean"):
        scene = Scene(rule, False, "flip", 1, 1, size)
        lost[rule] = play(scene).loss / play(scene.baseline()).loss - 1
    assert lost["mean"] > 0.05 > lost["vote"]


def test_a_page_says_by_how_much_a_goal_is_missed(tmp_path: Path) -> None:
    study = Study(hostile=(4,))
    results = {}
    for scene in study.scenes():
        nodes = [NodeRecord(number >= scene.honest, None, 0, 0, {}) for number in range(16)]
        if scene.trusting and scene.hostile:
            nodes[12:] = [NodeRecord(True, 60, 40, 1, {})] * 4
        loss = 2.0 if scene.alone else 2.1
        results[scene.name] = SceneResult(scene, [(1000, 3.0), (2000, loss)], loss, nodes, 1.0)
    flip = results[Scene("vote", True, "flip", 4, 1).name]
    assert relative(flip, results) == pytest.approx(0.05)
    text = page(study, results)
    assert "| `vote` + trust | +5.0% (flip); missed by 3.0 points | 60 (stale); missed by 10 rounds | 0 | 0 |" in text
    del results[flip.scene.name]
    write_report(study, results, tmp_path)
    assert "**1 scenes are still to be played.**" in (tmp_path / "README.md").read_text()


def test_the_page_follows_from_the_recorded_results() -> None:
    folder = DOCS / "adversary"
    assert (folder / "README.md").read_text(encoding="utf-8") == page(FULL, read(folder / "results.json", FULL))
