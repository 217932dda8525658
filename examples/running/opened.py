"""Compares an exported folder, as transformers opens it, with the replica that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from deploy.local_swarm.processes import SwarmError
from examples.running.swarm import Swarm
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import task_of

PROMPTS = ("def ", "import os\n", 'class Node:\n    """')
LOGITS_DIFFER_MAX = 1e-5
GREEDY_TOKENS = 40


@torch.no_grad()
def compare_with_transformers(swarm: Swarm, exported: Path, prompts: Sequence[str] = PROMPTS) -> dict[str, str]:
    """Compare logits and greedy text for some prompts. Raises SwarmError if they differ."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - slow

    theirs: Any = AutoModelForCausalLM.from_pretrained(exported)
    tokenizer: Any = AutoTokenizer.from_pretrained(exported)
    texts = []
    for prompt in prompts:
        tokens = _tokens(tokenizer, prompt)
        written = theirs.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=GREEDY_TOKENS, do_sample=False
        )
        expected = tokenizer.decode(written[0], skip_special_tokens=True)
        greedy = ("--temperature", "0", "--length", str(GREEDY_TOKENS), "--prompt", prompt)
        texts.append((expected.rstrip(), swarm.command("sample", *greedy).rstrip()))
    if different := [pair for pair in texts if pair[0] != pair[1]]:
        raise SwarmError(f"the greedy texts of transformers differ: {different}")
    return {
        "logits, ours and those of transformers": _compare_logits(swarm, theirs, tokenizer, prompts),
        "greedy text of both": f"equal, {len(prompts)} times {GREEDY_TOKENS} tokens",
    }


@torch.no_grad()
def compare_adapter(swarm: Swarm, base: Path, adapter: Path, prompts: Sequence[str]) -> dict[str, str]:
    """Compare the logits with those of peft, which opens the adapter on its base. Raises SwarmError if they differ."""
    from peft import PeftModel  # noqa: PLC0415 - slow
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - slow

    theirs: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    size = sum(file.stat().st_size for file in adapter.glob("*.safetensors"))
    return {
        "logits, ours and those of peft": _compare_logits(swarm, theirs.eval(), tokenizer, prompts),
        "the adapter's weights": f"{size:,} bytes",
    }


def _compare_logits(swarm: Swarm, theirs: Any, tokenizer: Any, prompts: Sequence[str]) -> str:
    state = open_state(swarm.state, read_only=True)
    replica = replica_at_head(state)
    ours = Stateless(task_of(state.contract.model).model("cpu", state.blobs))
    largest = 0.0
    for prompt in prompts:
        tokens = _tokens(tokenizer, prompt)
        difference = ours.next_logits(replica.tensors, tokens[0]) - theirs(input_ids=tokens).logits[0, -1]
        largest = max(largest, float(difference.abs().max()))
    state.close()
    if largest > LOGITS_DIFFER_MAX:
        raise SwarmError(f"the logits differ by {largest:.1e}")
    return f"differ by at most {largest:.1e}, over {len(prompts)} prompts"


def _tokens(tokenizer: Any, prompt: str) -> torch.Tensor:
    tokens: torch.Tensor = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    return tokens
