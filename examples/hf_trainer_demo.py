"""Train a small causal language model with Hugging Face's Trainer and DeMo, on any number of ranks.

    torchrun --nproc-per-node 2 examples/hf_trainer_demo.py
    torchrun --nproc-per-node 2 examples/hf_trainer_demo.py --resume     continues from the newest checkpoint

It needs `pip install transformers accelerate`.

The Trainer wraps the model in DistributedDataParallel (DDP), which would average the gradients over the ranks. DeMo
needs each rank's own gradients, so `LocalGradients` runs every forward and backward pass under DDP's `no_sync`. DDP
still does one useful thing: it makes the parameters of all ranks equal at the start.

The Trainer saves only the optimizer of the first rank. So with `RankStates` each rank saves its own beside it, and a
resumed run has the same bits as an uninterrupted one.

Two settings belong to it:
* `max_grad_norm=0`, because DeMo bounds its steps itself.
* `average_tokens_across_devices=False`, because it scales the loss of each rank for a later average.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from thinwire import DeMo

CONTEXT = 64


class LocalGradients(Trainer):  # type: ignore[misc]
    """A Trainer in which each rank keeps its own gradients."""

    def training_step(self, model: nn.Module, *arguments: Any, **named: Any) -> Tensor:
        # one rank alone is not wrapped
        with model.no_sync() if isinstance(model, nn.parallel.DistributedDataParallel) else nullcontext():
            loss: Tensor = super().training_step(model, *arguments, **named)
        return loss


class Report(TrainerCallback):  # type: ignore[misc]
    """Prints loss and bytes at each step."""

    def __init__(self, optimizer: DeMo) -> None:
        self._optimizer = optimizer

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: dict[str, float], **named: Any) -> None:
        if state.is_world_process_zero and "loss" in logs:
            sent = self._optimizer.bytes_sent
            print(f"step {state.global_step:4}  loss {float(logs['loss']):.3f}  sent {sent:,} bytes in all", flush=True)


class RankStates(TrainerCallback):  # type: ignore[misc]
    """Saves the optimizer of each rank in the Trainer's checkpoints, and loads it when the Trainer resumes."""

    def __init__(self, optimizer: DeMo) -> None:
        self._optimizer = optimizer

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **named: Any) -> None:
        path = self._path(args, state.global_step)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self._optimizer.state_dict(), path)

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **named: Any) -> None:
        if state.global_step:  # by now, the Trainer has loaded the first rank's
            path = self._path(args, state.global_step)
            self._optimizer.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    def _path(self, args: TrainingArguments, step: int) -> Path:
        return Path(args.output_dir) / f"checkpoint-{step}" / f"optimizer-of-rank-{args.process_index}.pt"


class Bytes(Dataset[dict[str, Tensor]]):
    """Samples of CONTEXT bytes from Python's standard library."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
        text = b"".join(file.read_bytes() for file in files)
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self._text) // CONTEXT

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        sample = self._text[index * CONTEXT : (index + 1) * CONTEXT]
        return {"input_ids": sample, "labels": sample}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="runs/hf_trainer_demo")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    set_seed(1)
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=CONTEXT,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = DeMo(model.parameters(), lr=2e-3, compression_decay=0.99, precondition="adam", magnitude="clipped")
    settings = TrainingArguments(
        output_dir=given.out,
        max_steps=given.steps,
        per_device_train_batch_size=8,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        average_tokens_across_devices=False,
        save_strategy="steps",
        save_steps=given.save_every,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    callbacks = [Report(optimizer), RankStates(optimizer)]
    trainer = LocalGradients(model, settings, train_dataset=Bytes(), optimizers=(optimizer, None), callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)  # Report prints instead
    trainer.train(resume_from_checkpoint=given.resume)
    print(f"rank {settings.process_index}: fingerprint {optimizer.fingerprint():016x}", flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold tensors: see docs/optimizer.md


if __name__ == "__main__":
    main()
