"""Train a small byte model with DeMo, on any number of ranks.

    torchrun --nproc-per-node 2 examples/torchrun_demo.py
    torchrun --nproc-per-node 2 examples/torchrun_demo.py --resume     continues from the newest checkpoint

Uses CUDA devices with NCCL if there are any, otherwise the CPU with gloo. The text is Python's standard library.
Each rank draws its own samples, and gradients stay local: `optimizer.step()` is the only communication.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire import DeMo
from thinwire_proto.models import BYTE_PRESETS, build_decoder

TEXT_BYTES_MAX = 4_000_000
WARMUP = 10  # steps


def main() -> None:
    arguments = _arguments()
    device = _join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    spec = BYTE_PRESETS[arguments.preset]
    model = build_decoder(spec, device)
    model.load_state_dict(_first_state(arguments.preset, arguments.seed))  # equal on all ranks
    optimizer = DeMo(
        model.parameters(),
        lr=arguments.lr,
        compression_decay=0.99,
        values=arguments.values,
        magnitude="clipped" if arguments.values == "vote" else "sign",
        precondition="adam",
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, arguments.steps))
    done = _resume(arguments.checkpoints, model, optimizer, scheduler) if arguments.resume else 0
    if done and rank == 0:
        print(f"continues after step {done} of {arguments.checkpoints}", flush=True)
    text = _text()
    parameters = sum(tensor.numel() for tensor in model.parameters())
    all_reduce = 2 * (ranks - 1) / ranks * 4 * parameters  # bytes sent by a rank in a ring all-reduce of float32

    for step in range(done, arguments.steps):
        sent = optimizer.bytes_sent
        tokens = _samples(text, spec.context, arguments.samples, seed=(arguments.seed, step, rank)).to(device)
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            loss = model.loss(tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if rank == 0:
            sent = optimizer.bytes_sent - sent
            comparison = f", {all_reduce / sent:.0f} times fewer than an all-reduce" if sent else ""
            print(f"step {step + 1:4}  loss {loss.item():.3f}  sent {sent:,} bytes{comparison}", flush=True)
        if (step + 1) % arguments.save_every == 0 or step + 1 == arguments.steps:
            _save(arguments.checkpoints, step + 1, model, optimizer, scheduler)

    fingerprint = optimizer.fingerprint()
    halves = torch.tensor([fingerprint >> 32, fingerprint & 0xFFFFFFFF], device=device)
    gathered = [torch.empty_like(halves) for _ in range(ranks)]
    dist.all_gather(gathered, halves)
    equal = all(torch.equal(theirs, halves) for theirs in gathered)
    if rank == 0:
        found = "equal bit for bit" if equal else "NOT equal"
        print(f"the parameters of all {ranks} ranks are {found}; their fingerprint is {fingerprint:016x}")
    dist.barrier()
    dist.destroy_process_group()
    # gloo's threads release the tensors of the last exchange slightly later. If the interpreter is already shutting
    # down then, torch aborts; so this process exits without finalizing Python.
    sys.stdout.flush()
    os._exit(0 if equal else 1)


def _join() -> torch.device:
    """Join the ranks that torchrun started. Started without torchrun, this process is the only rank."""
    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, alone)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def _first_state(preset: str, seed: int) -> dict[str, Tensor]:
    model = build_decoder(BYTE_PRESETS[preset])
    model.initialise(torch.Generator().manual_seed(seed))
    return model.state_dict()


def _rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < WARMUP:
        return (step + 1) / (WARMUP + 1)
    return 0.55 + 0.45 * math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP))


def _text() -> Tensor:
    """The training text, uint8 [n]."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(
        bytearray(b"".join(file.read_bytes() for file in files)[:TEXT_BYTES_MAX]), dtype=torch.uint8
    )


def _samples(text: Tensor, context: int, count: int, seed: tuple[int, int, int]) -> Tensor:
    """Samples int64 [count, context + 1], drawn by run, step and rank, so that a resumed run draws the same samples."""
    run, step, rank = seed
    generator = torch.Generator().manual_seed((run << 48) + (step << 16) + rank)
    starts = torch.randint(len(text) - context - 1, (count, 1), generator=generator)
    return text[starts + torch.arange(context + 1)].long()


def _save(
    folder: Path, step: int, model: torch.nn.Module, optimizer: DeMo, scheduler: torch.optim.lr_scheduler.LambdaLR
) -> None:
    """Write this rank's checkpoint. Each rank writes its own file, because the momentum is local."""
    path = folder / f"step-{step:08}" / f"rank-{dist.get_rank()}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
    }
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def _resume(folder: Path, model: torch.nn.Module, optimizer: DeMo, scheduler: torch.optim.lr_scheduler.LambdaLR) -> int:
    """Load the newest checkpoint that all ranks have written, and return its step."""
    names = [f"rank-{rank}.pt" for rank in range(dist.get_world_size())]
    whole = [path for path in sorted(folder.glob("step-*")) if all((path / name).exists() for name in names)]
    if not whole:
        sys.exit(f"there is no checkpoint of {len(names)} ranks in {folder}; start without --resume")
    state = torch.load(whole[-1] / names[dist.get_rank()], map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return int(state["step"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=BYTE_PRESETS, default="byte-1m", help="model size")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=8, help="samples for each rank and step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--values", choices=["vote", "float"], default="vote")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/torchrun_demo"))
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
