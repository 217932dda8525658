"""Writes the page of the study. Everything on it is computed from the results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from bench.adversary.attacks import ATTACKS
from bench.adversary.level_attacks import LEVEL_ATTACKS
from bench.adversary.run import SceneResult
from bench.adversary.scene import IN_LEVELS, NOBODY, Scene, Study
from bench.adversary.swarm import DIFFERENT, SLOW_EVERY, SLOWEST
from bench.convergence.arms import DEFAULT
from bench.markdown import table

PAGE = "README.md"
LOSS_GOAL = 0.02
"""Relative to the honest nodes alone, with a quarter hostile."""
ROUNDS_GOAL = 50
"""Rounds within which hostile nodes have weight zero."""
Results = dict[Scene, SceneResult]


def write_report(study: Study, results: Results, folder: Path) -> None:
    (folder / PAGE).write_text(page(study, results), encoding="utf-8")


def page(study: Study, results: Results) -> str:
    missing = sum(scene not in results for scene in study.scenes())
    parts = [_head(study, missing), "## The goals\n", _goals(study, results)]
    for attack, play in {**LEVEL_ATTACKS, **ATTACKS}.items():
        what = " ".join((play.__doc__ or "").split())
        parts += [f"## {attack}\n", f"{what}\n", _table(study, results, attack)]
    parts += ["## Nobody is hostile\n", _peace(study, results)]
    return "\n".join(parts)


def relative(result: SceneResult, results: Results) -> float | None:
    """The loss relative to that of the same honest nodes alone, less 1."""
    alone = results.get(result.scene.baseline())
    return None if alone is None else result.loss / alone.loss - 1


def _head(study: Study, missing: int) -> str:
    size = study.size
    left = f"\n**{missing} scenes are still to be played.** The same command continues with them.\n" if missing else ""
    seeds = "1"
    if study.repeated:
        seeds += f"; and {', '.join(map(str, study.repeated))} for `vote` + trust with a quarter hostile"
    return f"""# Hostile nodes

`make bench-adversary` writes this page, from [results.jsonl](results.jsonl).

| setting | value |
|---|---|
| nodes | {size.present}, hostile ones included |
| model | decoder for bytes: width {size.width}, layers {size.layers}, context {size.context} |
| text | the Python standard library |
| rounds, and samples of a node in each | {size.rounds}, {size.samples} |
| k | {size.k}, fixed; updates keep {size.update_topk or "all"} |
| seeds | {seeds} |

* All nodes run in one process, with the swarm's own compression, codec, merge, decode and weights.
* Node {SLOWEST} is the slowest: it delivers in one round of {SLOW_EVERY}, on old parameters. Node {DIFFERENT} has other
  data: tables of character sets. Both are honest.
* *Loss* is in nats per byte on {size.held_out} samples of files that no node trained on. *Relative* compares it with
  the same honest nodes alone, under `vote`.
* *Zero from* is the round in which hostile nodes first have weight zero: the first of them and the last of them.
  *Again* is the most rounds after that in which one of them had weight once more.
  *Honest suspected* and *honest banned* count honest nodes that ever had weight zero, and that were ever banned.
* With `merged_muon`, nodes send their gradients in levels with a size for each tile. No base may be old there, so node
  {SLOWEST} takes part in one round of {SLOW_EVERY}, on the newest parameters.
* Trust judges votes alone here. A coordinator also audits, which vouches for honest nodes with other data
  ([trust.md](../trust.md)).
* Hostile nodes know everything: what the honest nodes send in this round, and each other.
{left}"""


def _goals(study: Study, results: Results) -> str:
    """A table of the defences with trust, with a quarter hostile, and by how much a goal is missed."""
    hostile, rows = study.size.present // 4, []
    attacked = [one for one in study.scenes() if one.hostile == hostile and not one.alone and one in results]
    for arm, trusting in product((DEFAULT, *IN_LEVELS), (True, False)):
        found = [results[scene] for scene in attacked if (scene.arm, scene.trusting) == (arm, trusting)]
        if found:
            rows.append([_label(found[0].scene), *_against_goals(found, results)])
    head = (
        "defence",
        f"worst loss, relative (goal: at most {LOSS_GOAL:+.0%})",
        f"last hostile node that first has weight zero (goal: by round {ROUNDS_GOAL})",
        "honest nodes banned (goal: 0)",
        "honest nodes ever at weight zero",
    )
    return f"With {hostile} of {study.size.present} nodes hostile, over all attacks:\n\n{table(head, rows)}"


def _against_goals(found: list[SceneResult], results: Results) -> Iterator[str]:
    losses = {_attack(result.scene): relative(result, results) for result in found}
    known = {attack: loss for attack, loss in losses.items() if loss is not None}
    worst = max(known, key=lambda attack: known[attack], default="")
    if not worst:
        yield "?"
    else:
        by = f"; missed by {100 * (known[worst] - LOSS_GOAL):.1f} points" if known[worst] > LOSS_GOAL else ""
        yield f"{known[worst]:+.1%} ({worst}){by}"
    if not found[0].scene.trusting:
        yield from ("never", "", "")
        return
    never = sorted(
        {_attack(result.scene) for result in found for node in result.nodes if node.hostile and node.zero_from is None}
    )
    last = max(
        (
            (node.zero_from, _attack(result.scene))
            for result in found
            for node in result.nodes
            if node.hostile and node.zero_from is not None
        ),
        default=(0, ""),
    )
    by = f"; missed by {last[0] - ROUNDS_GOAL} rounds" if last[0] > ROUNDS_GOAL else ""
    again, where = max((_again(result), _attack(result.scene)) for result in found)
    relapsed = f"; again for {again} rounds ({where})" if again else ""
    yield f"{last[0]} ({last[1]}){by}{relapsed}" + (f"; missed: not all in {', '.join(never)}" if never else "")
    honest = [
        (_attack(result.scene), number, node)
        for result in found
        for number, node in enumerate(result.nodes)
        if not node.hostile
    ]
    yield str(sum(node.bans > 0 for _, _, node in honest))
    yield (
        ", ".join(f"node {number} in {attack} for {node.zero} rounds" for attack, number, node in honest if node.zero)
        or "0"
    )


def _table(study: Study, results: Results, attack: str) -> str:
    head = ("defence", "hostile", "loss", "relative", "zero from", "honest suspected", "honest banned")
    scenes = (scene for scene in study.scenes() if scene.attack == attack and scene in results)
    return table(head, (_row(results[scene], results) for scene in scenes))


def _row(result: SceneResult, results: Results) -> list[str]:
    scene, against = result.scene, relative(result, results)
    share = "" if against is None else f"{against:+.2%}"
    cells = [_label(scene), str(scene.hostile), f"{result.loss:.4f}", share]
    if not scene.trusting:
        return [*cells, "", "", ""]
    zero = [node.zero_from for node in result.nodes if node.hostile]
    found = sorted(turn for turn in zero if turn is not None)
    text = f"{found[0]} to {found[-1]}" if found else ""
    if len(found) < len(zero):
        text = f"{text}; {len(zero) - len(found)} never".removeprefix("; ")
    if again := _again(result):
        text += f"; again for {again}"
    honest = [node for node in result.nodes if not node.hostile]
    return [*cells, text, str(sum(node.zero > 0 for node in honest)), str(sum(node.bans > 0 for node in honest))]


def _again(result: SceneResult) -> int:
    """The most rounds in which a hostile node had weight after it first had none. A difference of one is none: older
    lines counted the weight after a round."""
    rounds = result.scene.size.rounds
    hostile = [node for node in result.nodes if node.hostile and node.zero_from is not None]
    most = max((rounds - (node.zero_from or 0) - node.zero for node in hostile), default=0)
    return most if most > 1 else 0


def _peace(study: Study, results: Results) -> str:
    """The cost of the rules where all nodes are honest, and the runs that others are compared with."""
    rows = []
    for scene in study.scenes():
        if scene.attack == NOBODY and scene in results:
            result = results[scene]
            whole = results.get(replace(scene, trusting=False, hostile=0))
            against = "" if whole is None else f"{result.loss / whole.loss - 1:+.2%}"
            suspected = str(sum(node.zero > 0 for node in result.nodes)) if scene.trusting else ""
            rows.append((_label(scene), scene.honest, f"{result.loss:.4f}", against, suspected))
    head = ("defence", "honest nodes", "loss", "relative to 16 under `vote`", "honest suspected")
    return table(head, rows)


def _attack(scene: Scene) -> str:
    return scene.attack + (f", seed {scene.seed}" if scene.seed > 1 else "")


def _label(scene: Scene) -> str:
    return scene.defence + (f", seed {scene.seed}" if scene.seed > 1 else "")
