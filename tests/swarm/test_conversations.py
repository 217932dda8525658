"""A run learns from conversations beside text: losses, tokens and the model's answers are of what counts."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest

from deploy.local_swarm.processes import BIN
from support.real import PATIENCE_S, RealSwarm, ended, real_swarm, run_text, until, without_a_centre
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.hall.measurement import TOLERANCE
from thinwire_coordinator.hall.measuring import HeldOut
from thinwire_coordinator.kinds import kind_of

STEPS, CONTEXT = 24, 64
TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)
RUNS = {
    "star": run_text(STEPS, model="vocabulary = 256"),
    "gossip": run_text(STEPS, length_ms=1000, rounds='pace = "clock"', model="vocabulary = 256")
    + without_a_centre(2, 4, topology="complete"),
}
EVALUATE = ("--evaluate", "nodes", "--evaluate-every", "4")


def prepared(swarm: RealSwarm) -> Path:
    """Sums, as conversations, and text."""
    folder = swarm.folder
    chats = [{"prompt": f"{one} and {two}?", "response": str(one + two)} for one in range(30) for two in range(30)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": f"line {n} " * 30}) + "\n" for n in range(60)))
    (folder / "template.jinja").write_text(TEMPLATE)
    sources = (f"chats={folder / 'chats.jsonl'}", f"texts={folder / 'texts.jsonl'}")
    options = ("--out", str(folder / "data"), "--context", str(CONTEXT), "--held-out", "10%")
    template = ("--chat-template", str(folder / "template.jinja"))
    command = [str(BIN / "thinwire-coordinator"), "prepare", *sources, *options, *template]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return folder / "data"


@pytest.mark.parametrize("exchange", RUNS)
def test_a_run_learns_from_conversations_beside_text(tmp_path: Path, exchange: str) -> None:
    """In a star run, the second node is one of two processes."""
    is_star = exchange != "gossip"
    with real_swarm(tmp_path) as swarm:
        run = RUNS[exchange] + f'[data]\nkind = "tokens"\nfolder = "{prepared(swarm)}"\n'
        run += "weights = { chats = 0.75, texts = 0.25 }\n"
        coordinator = swarm.coordinator(run, "--http", "off", *(EVALUATE if is_star else ()))
        nodes = [swarm.node("first"), swarm.node("second", *(("--device", "cpu*2") if is_star else ()))]
        assert [ended(node) for node in nodes] == [0, 0]
        until(lambda: swarm.status().measured_step == STEPS, "the last loss is measured", coordinator)
        until(lambda: swarm.status().HasField("whole"), "the ledger is read", coordinator)
        status = swarm.status()
        coordinator.end(8.0)
        state = open_state(swarm.state, read_only=True)
        try:
            sets = {found.name: found for found in state.held_out_sets}
            assert sets["chats"].counted < sets["chats"].samples * CONTEXT / 2
            assert CONTEXT / 4 < state.tokens_a_sample < 3 * CONTEXT / 4
            rows = state.ledger.counted_at(0, state.ledger.step)
            samples = sum(share for _, _, counted in rows for _, share in counted)
            assert samples > STEPS
            assert status.whole.tokens == samples * state.tokens_a_sample
            held_out = HeldOut(state.contract, state.data, state.blobs)
            for found in status.held_out:
                losses = dict(state.ledger.losses(found.name))
                for step in (0, STEPS):
                    expected = held_out.measure(kind_of(state.contract).model_at(state, step), sets[found.name])
                    assert losses[step] == pytest.approx(expected, rel=TOLERANCE)
                assert losses[STEPS] < losses[0]
                # a token is a byte
                assert found.bits_per_byte == pytest.approx(found.loss / math.log(2), rel=0.05)
        finally:
            state.close()
