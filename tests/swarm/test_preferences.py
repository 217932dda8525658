"""Nodes with different bases learn preferences: the margin grows on held-out pairs, and replicas are equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from support.adapters import base_folder
from support.prepared import prepared
from support.real import RealSwarm, ended, last_fingerprint, real_swarm, totals, until, without_a_centre
from thinwire_coordinator.cli.evaluate import evaluate
from thinwire_coordinator.hall.ledger.results import NewestResults
from thinwire_node.observe import status

STEPS, CONTEXT = 24, 63
CONFIG = {
    **{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64},
}
TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)
EXCHANGES = {
    "star": "[round]\nsamples = 4\nweight_max = 4\nlength_ms = 60000\n",
    "gossip": '[round]\npace = "clock"\nlength_ms = 1000\n' + without_a_centre(2, 4, topology="complete"),
}


def data_of(folder: Path) -> Path:
    """Sums, of which the right one is preferred."""
    sums = [(one, other) for one in range(20) for other in range(20)]
    rows = [
        {"prompt": f"{one}+{other}?", "chosen": f"{one + other}.", "rejected": f"{one + other + 7}!"}
        for one, other in sums
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "template.jinja").write_text(TEMPLATE)
    out = folder / "data"
    settings: dict[str, Any] = {"chat_template": folder / "template.jinja", "context": CONTEXT, "held_out": 0.1}
    prepared(out, f"sums={folder / 'pairs.jsonl'}", **settings)
    return out


def run_of(swarm: RealSwarm, exchange: str) -> str:
    base = base_folder(swarm.folder / "base", config=CONFIG, scale=1)
    return f"""
[model]
kind = "lora"
base = "{base}"
context = {CONTEXT}
[data]
kind = "tokens"
folder = "{data_of(swarm.folder)}"
[schedule]
steps = {STEPS}
warmup_steps = 4
learning_rate = 0.005
{EXCHANGES[exchange]}"""


def evaluated(swarm: RealSwarm, step: int, capsys: pytest.CaptureFixture[str]) -> tuple[float, float, float]:
    """The loss, the margin and the share of pairs whose chosen response is ahead."""
    capsys.readouterr()
    evaluate(swarm.state, step, (), (), 64, as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["tokens"] >= 32
    return found["loss"], found["margin"], found["preferred"]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_nodes_learn_preferences(tmp_path: Path, exchange: str, capsys: pytest.CaptureFixture[str]) -> None:
    is_star = exchange == "star"
    with real_swarm(tmp_path) as swarm:
        measure = ("--evaluate", "nodes", "--evaluate-every", "12") if is_star else ()
        coordinator = swarm.coordinator(run_of(swarm, exchange), "--http", "127.0.0.1:0", "--wait-for", "2", *measure)
        options = [("--base-bits", "16"), ("--base-bits", "4")] if is_star else [(), ()]
        nodes = [swarm.node(f"node-{number}", *each) for number, each in enumerate(options)]
        assert [ended(node) for node in nodes] == [0] * len(nodes)
        until(lambda: len(swarm.status().held_out) == 1, "a held-out loss", coordinator)
        assert swarm.status().held_out[0].unit == "pair"
        with urlopen(f"{swarm.ready['page']}/api/status", timeout=10) as answer:
            assert json.load(answer)["run"]["unit"] == "nats per pair"
        assert [status.read(tmp_path / f"node-{number}").loss_unit for number in range(2)] == ["pair"] * 2
        if is_star:
            assert [totals(node)[1] for node in nodes] == [0, 0]
            assert len({last_fingerprint(node) for node in nodes}) == 1
            assert not coordinator.events("coordinator.evaluation_differs")
        coordinator.end(8.0)
        loss, margin, _ = evaluated(swarm, 0, capsys)
        assert loss == pytest.approx(0.6931, abs=1e-3)
        assert margin == pytest.approx(0.0, abs=1e-4)
        loss, margin, preferred = evaluated(swarm, STEPS, capsys)
        assert loss < 0.6
        assert margin > 0.2
        assert preferred > 0.9
        kept = {(one.step, one.metric): one.value for one in NewestResults(swarm.state).read()}
        assert kept[0, "loss"] == pytest.approx(0.6931, abs=1e-3)
        assert (kept[STEPS, "loss"], kept[STEPS, "margin"], kept[STEPS, "preferred"]) == (loss, margin, preferred)
