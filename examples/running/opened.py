"""Compares an exported folder, as transformers opens it, with the replica that it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from deploy.local_swarm.processes import SwarmError
from examples.running.swarm import Swarm
from thinwire_coordinator.ledger.state_directory import open_state, replica_at_head
from thinwire_proto.task import Stateless, task_of

PROMPTS = ("def ", "import os\n", 'class Node:\n    """')
LOGITS_DIFFER_MAX = 1e-5
GREEDY_TOKENS = 40


@torch.no_grad()
def compare_with_transformers(swarm: Swarm, exported: Path) -> dict[str, str]:
    """Compare logits and greedy text for some prompts. Raises SwarmError if they differ."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - slow

    theirs: Any = AutoModelForCausalLM.from_pretrained(exported)
    tokenizer: Any = AutoTokenizer.from_pretrained(exported)
    state = open_state(swarm.state, read_only=True)
    replica = replica_at_head(state)
    ours = Stateless(task_of(state.contract.model).model("cpu", state.blobs))
    largest, texts = 0.0, []
    for prompt in PROMPTS:
        tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        logits = theirs(tokens).logits[0, -1]
        largest = max(largest, float((ours.next_logits(replica.tensors, tokens[0]) - logits).abs().max()))
        written = theirs.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=GREEDY_TOKENS, do_sample=False
        )
        expected = tokenizer.decode(written[0], skip_special_tokens=True)
        greedy = ("--temperature", "0", "--length", str(GREEDY_TOKENS), "--prompt", prompt)
        texts.append((expected.rstrip(), swarm.command("sample", *greedy).rstrip()))
    state.close()
    if largest > LOGITS_DIFFER_MAX:
        raise SwarmError(f"the logits of transformers differ by {largest:.1e}")
    if different := [pair for pair in texts if pair[0] != pair[1]]:
        raise SwarmError(f"the greedy texts of transformers differ: {different}")
    return {
        "logits, ours and those of transformers": f"differ by at most {largest:.1e}, over {len(PROMPTS)} prompts",
        "greedy text of both": f"equal, {len(PROMPTS)} times {GREEDY_TOKENS} tokens",
    }
