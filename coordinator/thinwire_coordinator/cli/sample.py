"""The command `thinwire-coordinator sample`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from thinwire_coordinator.chat import chat_prompt
from thinwire_coordinator.hall.generation import Sampling, first_prompt, generate, prompt_tokens, text_of, tokenizer_of
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.clean_text import shown_as_written
from thinwire_proto.errors import ConfigError
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
    _print_pieces(prompt if chat is None else "", text_of(tokenizer, tokens, drawn))


def _print_pieces(first: str, rest: Iterable[str]) -> None:
    """Print pieces of text at once. Ends quietly when the program that reads them has ended."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    seen = shown_as_written if sys.stdout.isatty() else str  # strangers trained the model; a file gets what it wrote
    try:
        print(first, end="", flush=True)
        for piece in rest:
            print(seen(piece), end="", flush=True)
        print(flush=True)
    except KeyboardInterrupt:
        print(flush=True)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails when it flushes at exit
