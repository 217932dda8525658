"""The commands `thinwire-coordinator export` and `sample`, which read the model from a state directory."""

from __future__ import annotations

from pathlib import Path

from thinwire_coordinator.generation import Sampling, generate, prompt_tokens, text_of, tokenizer_of
from thinwire_coordinator.ledger.state_directory import RunState, open_state, replay, replica_at_head
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import Stateless, task_of


def export(folder: Path, step: int | None, out: Path) -> None:
    replica = replica_at(folder, step)
    try:
        replica.save(out)
    except OSError as error:
        raise ConfigError(str(error)) from None
    print(f"step {replica.step}: {replica.layout.parameters:,} parameters written to {out}")


def print_sample(folder: Path, step: int | None, prompt: str, sampling: Sampling) -> None:
    """Print a prompt and what the model of a step continues it with, as it is generated."""
    state = open_state(folder, read_only=True)
    model = Stateless(task_of(state.contract.model).model("cpu", state.blobs))
    tokenizer = tokenizer_of(model, state.data)
    if tokenizer is None:
        raise ConfigError(f"a model of kind {state.contract.model.kind!r} generates no text from these data")
    parameters, tokens = _replica_of(state, step).tensors, prompt_tokens(tokenizer, prompt)
    print(prompt, end="", flush=True)
    for piece in text_of(tokenizer, tokens, generate(model, parameters, tokens, sampling, tokenizer.end)):
        print(piece, end="", flush=True)
    print()


def replica_at(folder: Path, step: int | None) -> Replica:
    """The replica at a step (None: at the head), replayed from the newest snapshot at or before that step.

    Raises ConfigError if the step does not exist or is no longer kept.
    """
    return _replica_of(open_state(folder, read_only=True), step)


def _replica_of(state: RunState, step: int | None) -> Replica:
    if step is None:
        return replica_at_head(state)
    if not 0 <= step <= state.ledger.step:
        raise ConfigError(f"there is no step {step}: the ledger holds steps 0 to {state.ledger.step}")
    snapshots = state.snapshot_steps()
    if step < snapshots[0]:
        raise ConfigError(f"step {step} is no longer kept: the oldest snapshot is that of step {snapshots[0]}")
    replica = state.load_snapshot(max(snapshot for snapshot in snapshots if snapshot <= step))
    for _ in replay(state, replica, step):
        pass
    return replica
