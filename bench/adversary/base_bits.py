"""Measures what the bits of a frozen base change: held-out losses, and the audits of adapters.

    python -m bench.adversary.base_bits

A small Llama is trained on the bytes of the standard library, and is then the base of an adapter that a swarm in this
process trains. Its nodes hold the base in 16, 8 and 4 bits, in turns. The coordinator recomputes gradients and losses
with the base as its files are. First table: the loss of the swarm's adapter on held-out text with each base, and the
largest relative difference from the coordinator's on a part of 8 samples, which is what cross-checks compare. Second
table: the columns of `bench.adversary.audit_power`, for the nodes with each base.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.adversary.audit_power import HEAD, Found, Measured, Setting, row
from bench.convergence.problem import Problem
from bench.convergence.text import stdlib
from bench.markdown import table
from thinwire_coordinator.hall.ledger.creation import keep_blobs
from thinwire_coordinator.hall.measurement import PART_SAMPLES
from thinwire_proto.blobs import Blobs
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.models.lora import LoraTask
from thinwire_proto.models.transformers_models import build, canonical_config
from thinwire_proto.task import complete_model

BITS = (16, 8, 4)
AS_FILES = 32
CONTEXT = 64
CONFIG: dict[str, Any] = {
    **{"model_type": "llama", "vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2},
    **{"num_key_value_heads": 2, "intermediate_size": 384, "max_position_embeddings": CONTEXT},
}
BASE_STEPS, BASE_SAMPLES, BASE_RATE = 2000, 16, 2e-3
ROUNDS = 200
HELD_OUT = 256
"""Samples."""


class AdapterProblem(Problem):
    """An adapter in training on a base in so many bits."""

    def __init__(self, task: LoraTask, spec: LoraSpec, blobs: Blobs, bits: int) -> None:
        self.spec: Any = spec
        self.device, self._seed = torch.device("cpu"), 0
        self.read(stdlib())
        model = task.in_bits(bits).model("cpu", blobs)
        self._model: Any = model
        self._loss: Any = model.loss
        self.parameters = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        self.put(task.initial_state(0))

    @torch.no_grad()
    def losses(self) -> torch.Tensor:
        """The mean losses of parts of the held-out text, in nats a token."""
        places = range(0, len(self._held_out), len(self._held_out) // HELD_OUT)[:HELD_OUT]
        parts = [places[start : start + PART_SAMPLES] for start in range(0, HELD_OUT, PART_SAMPLES)]
        return torch.tensor([float(self._model.loss(self._tokens(self._held_out, part))) for part in parts])


class OnBases(Measured):
    """A swarm whose nodes hold the base in BITS, in turns."""

    def __init__(self, setting: Setting, rounds: int, problems: dict[int, AdapterProblem]) -> None:
        super().__init__(setting, rounds, (problems[AS_FILES], problems[AS_FILES]))
        self._problems = problems
        self.by_bits = {bits: Found() for bits in BITS}
        self.differences = dict.fromkeys(BITS, 0.0)

    def found_of(self, node: str) -> Found:
        return self.by_bits[BITS[int(node[1:]) % len(BITS)]]

    def _gradient(self, step: int, number: int) -> dict[str, torch.Tensor]:
        problem = self._problems[BITS[number % len(BITS)]]
        problem.put(self._replica.tensors)
        first = (step * self._setting.nodes + number) * self._setting.samples
        return problem.gradients(first, self._setting.samples)[1]

    def _recomputed(self, step: int, number: int, trained: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self._otherwise.put(self._replica.tensors)
        first = (step * self._setting.nodes + number) * self._setting.samples
        return self._otherwise.gradients(first, self._setting.samples)[1]

    def compare(self) -> dict[int, float]:
        """The held-out loss with each base. Notes the largest difference of a part."""
        found = {}
        for bits, problem in self._problems.items():
            problem.put(self._replica.tensors)
            found[bits] = problem.losses()
        for bits in BITS:
            apart = (found[bits] / found[AS_FILES] - 1).abs().max()
            self.differences[bits] = max(self.differences[bits], float(apart))
        return {bits: float(losses.mean()) for bits, losses in found.items()}


def trained_base(folder: Path) -> None:
    """Write a base that was trained on the text."""
    torch.manual_seed(0)
    model: Any = build(canonical_config(CONFIG, "base"), "cpu", draw=True)
    text, optimizer = torch.from_numpy(stdlib().train.astype("int64")), torch.optim.AdamW(model.parameters(), BASE_RATE)
    for step in range(BASE_STEPS):
        begins = torch.randint(len(text) - CONTEXT, (BASE_SAMPLES,)).tolist()
        tokens = torch.stack([text[begin : begin + CONTEXT] for begin in begins])
        for group in optimizer.param_groups:
            group["lr"] = BASE_RATE * min(1, (step + 1) / 50) * (1 - step / BASE_STEPS)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"the base: {loss.item():.3f} nats a token in training", file=sys.stderr, flush=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        trained_base(base)
        spec, paths = complete_model(LoraSpec(base=str(base), rank=8, context=CONTEXT), lambda: None)
        assert isinstance(spec, LoraSpec)
        task, blobs = LoraTask(spec), keep_blobs(Path(folder) / "blobs", paths, lambda: None)
        problems = {bits: AdapterProblem(task, spec, blobs, bits) for bits in (AS_FILES, *BITS)}
        setting = Setting(nodes=15, samples=4, width=128, layers=4, context=CONTEXT)
        swarm = OnBases(setting, ROUNDS, problems)
        before = swarm.compare()
        swarm.run()
        after = swarm.compare()
    apart = {bits: f"{largest:.1e}" for bits, largest in swarm.differences.items()}
    rows = [[str(bits), f"{before[bits]:.4f}", f"{after[bits]:.4f}", apart.get(bits, "–")] for bits in problems]
    print(table(("bits", "loss of the base", f"after {ROUNDS} rounds", "largest difference of a part"), rows))
    print(table(("bits", *HEAD), [[str(bits), *row(setting, found)] for bits, found in swarm.by_bits.items()]), end="")


if __name__ == "__main__":
    main()
