"""The command `thinwire-coordinator sample`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from thinwire_common.program import print_pieces
from thinwire_coordinator.chat import chat_prompt
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.errors import ConfigError
from thinwire_proto.generation import Sampling, first_prompt, generate, prompt_tokens, text_of, tokenizer_of
from thinwire_proto.task import Stateless, task_of


def sample(state_dir: Path, step: int | None, prompt: str | None, chat: str | None, sampling: Sampling) -> None:
    """Print what the model of a step writes, as it comes: after a prompt, which is printed first, or as the answer to
    the message `chat`. Raises ThinwireError."""
    state = open_state(state_dir, read_only=True)
    model = Stateless(task_of(state.contract.model).model("cpu", state.blobs))
    tokenizer = tokenizer_of(model, state.data)
    if tokenizer is None:
        raise ConfigError(f"a model of kind {state.contract.model.kind!r} generates no text from these data")
    if prompt is None:
        prompt = first_prompt(tokenizer)
    tokens = prompt_tokens(tokenizer, prompt if chat is None else chat_prompt(tokenizer, chat))
    replica = kind_of(state.contract).model_at(state, step)
    drawn = generate(model, replica.tensors, tokens, sampling, tokenizer.end)
    print_pieces(chain([prompt] if chat is None else [], text_of(tokenizer, tokens, drawn)))
