"""Measures what a frozen base and a pass over it take, for the shape of a Llama of 7B parameters or of a config.

    python -m bench.speed.base_memory [--bits 4] [--tokens 1024] [--config config.json]

The processor holds and trains the first 2 and 3 of its layers, with random weights that are read from files as a node
reads them, an adapter of rank 16, checkpoints, and one sample. Bytes are those of torch's allocator at its peak. They
grow by the same amount with each layer after the first, so the sum for all layers follows. The last line adds what a
node holds of the adapter beside the pass: values, gradients, momentum, and copies of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.markdown import table
from bench.speed.peaks import allocated_bytes_max
from thinwire_common.units import human_bytes
from thinwire_coordinator.hall.ledger.creation import keep_blobs
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_proto.contract import RunSpec
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.contract.trained import Trained
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.model_memory import memory_of
from thinwire_proto.models.lora import LoraTask
from thinwire_proto.models.transformers_models import build, canonical_config
from thinwire_proto.models.weights_folder import read_json
from thinwire_proto.needs import trained_bytes
from thinwire_proto.task import complete_model

MEASURED = (2, 3)
SEVEN_B: dict[str, Any] = {
    **{"model_type": "llama", "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008},
    **{"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096},
    **{"num_hidden_layers": 32, "tie_word_embeddings": False},
}
RANK = 16


def task_with(folder: Path, shape: dict[str, Any], layers: int, tokens: int) -> tuple[LoraTask, LoraSpec, Any]:
    """The task on a base of so many layers, its spec, and the base's files."""
    base, config = folder / f"base-{layers}", shape | {"num_hidden_layers": layers}
    base.mkdir()
    (base / "config.json").write_text(json.dumps(config))
    shapes = dict(build(canonical_config(config, "base"), "meta").named_parameters())
    tensors = {
        name: torch.randn(like.shape, dtype=torch.bfloat16).mul_(shape.get("initializer_range", 0.02))
        for name, like in shapes.items()
    }
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    spec, paths = complete_model(LoraSpec(base=str(base), rank=RANK, context=tokens), lambda: None)
    assert isinstance(spec, LoraSpec)
    return LoraTask(spec), spec, keep_blobs(folder / f"blobs-{layers}", paths, lambda: None)


def measured(task: LoraTask, spec: LoraSpec, blobs: Any, bits: int) -> tuple[int, int]:
    """(bytes of the base and buffers, bytes at the peak of a pass beside them and the adapter)."""
    compute = TorchCompute(task.in_bits(bits), torch.device("cpu"), blobs, MicroBatch(1, checkpoints=True))
    first = task.initial_state(1)
    compute.use(first)
    model: Any = compute._model.model
    held = sum(tensor.nbytes for _, tensor in model.named_parameters() if not tensor.requires_grad)
    held += sum(buffer.nbytes for buffer in model.buffers())
    sums = {name: torch.zeros_like(tensor) for name, tensor in first.items()}
    sample = (torch.randint(0, spec.vocabulary, (1, spec.context + 1)),)
    return held, allocated_bytes_max(lambda: compute.add_gradients(sample, sums, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("--bits", type=int, default=4, choices=(16, 8, 4))
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--config", type=Path, help="of another model than the Llama of 7B")
    arguments = parser.parse_args()
    shape = SEVEN_B if arguments.config is None else read_json(arguments.config)
    layers = shape["num_hidden_layers"]
    bits, tokens, rows, found = arguments.bits, arguments.tokens, [], []
    with tempfile.TemporaryDirectory() as folder:
        for count in MEASURED:
            task, spec, blobs = task_with(Path(folder), shape, count, tokens)
            held, peak = measured(task, spec, blobs, bits)
            forecast = memory_of(spec, bits)
            of_pass = forecast.activations.peak(1, checkpoints=True, decoding=forecast.decoding)
            found.append((held, peak))
            rows.append([str(count), *map(human_bytes, (held, forecast.frozen, peak, of_pass, held + peak))])
        (held, peak), (more_held, more_peak) = found
        held += (layers - MEASURED[0]) * (more_held - held)
        peak += (layers - MEASURED[0]) * (more_peak - peak)
        whole = canonical_config(shape, "base")
        spec = spec.model_copy(update={"config": whole})
    forecast = memory_of(spec, bits)
    of_pass = forecast.activations.peak(1, checkpoints=True, decoding=forecast.decoding)
    summed = [f"{layers}, by the sum", *map(human_bytes, (held, forecast.frozen, peak, of_pass, held + peak))]
    print(table(("layers", "base", "forecast", "pass", "forecast", "both, measured"), [*rows, summed]))
    layout = TileLayout(LoraTask(spec).manifest())
    adapter = trained_bytes(RunSpec(model=spec), Trained(layout.parameters, layout.matrix_tiles, layout.vector_tiles))
    print(f"with {human_bytes(adapter)} for the adapter: {human_bytes(held + peak + adapter)}")


if __name__ == "__main__":
    main()
