"""Train a small byte model in a gossip run, on any number of ranks.

    torchrun --nproc-per-node 4 examples/torchrun_gossip.py
    torchrun --nproc-per-node 4 examples/torchrun_gossip.py --resume     continues from the newest checkpoint
    torchrun --nproc-per-node 4 examples/torchrun_gossip.py --muon       steps of Muon in place of AdamW's

Each rank steps by itself, and averages parameters with a few others while it computes. The data, the model and the
way to start are those of torchrun_demo.py.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire import Gossip, Muon, muon_groups
from thinwire_proto.models import BYTE_PRESETS, build_decoder

TEXT_BYTES_MAX = 4_000_000
WARMUP = 10  # steps


def main() -> None:
    arguments = _arguments()
    device = _join()
    rank = dist.get_rank()
    spec = BYTE_PRESETS[arguments.preset]
    model = build_decoder(spec, device)
    model.initialise(torch.Generator().manual_seed(arguments.seed))
    optimizer = _optimizer(model, arguments)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, arguments.steps))
    gossip = Gossip(model, optimizer, topology=arguments.topology, slack=arguments.slack)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "gossip": gossip}
    done = _resume(arguments.checkpoints, parts) if arguments.resume else 0
    if done and rank == 0:
        print(f"continues after step {done} of {arguments.checkpoints}", flush=True)
    text = _text()
    held_out, text = text[: len(text) // 20], text[len(text) // 20 :]

    for step in range(done, arguments.steps):
        tokens = _samples(text, spec.context, arguments.samples, seed=(arguments.seed, step, rank)).to(device)
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            loss = model.loss(tokens)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # mixes what came, steps, sends
        scheduler.step()
        if rank == 0:
            print(f"step {step + 1:4}  loss {loss.item():.3f}", flush=True)
        if (step + 1) % arguments.save_every == 0 or step + 1 == arguments.steps:
            _save(arguments.checkpoints, step + 1, parts)

    tokens = _samples(held_out, spec.context, 16, seed=(arguments.seed, 0, 0)).to(device)
    with torch.no_grad():
        alone = model.loss(tokens).item()
        with gossip.averaged():
            mean = model.loss(tokens).item()
    stats = gossip.stats()
    print(
        f"rank {rank}: held-out loss {alone:.3f}, of the mean of all ranks {mean:.3f}; "
        f"{stats['mixed']} messages mixed, waited {stats['waited_s']:.1f} s, sent {stats['bytes_sent']:,} bytes",
        flush=True,
    )
    gossip.finish()
    dist.barrier()
    dist.destroy_process_group()
    # gloo's threads may still be at work; torch aborts if Python's shutdown meets them
    sys.stdout.flush()
    os._exit(0)


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


def _optimizer(model: nn.Module, arguments: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW, or Muon for the matrices and AdamW for embeddings and all else."""
    if arguments.muon:
        return Muon(muon_groups(model), lr=arguments.lr or 1.5e-2)
    return torch.optim.AdamW(model.parameters(), lr=arguments.lr or 2e-3)


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


def _save(folder: Path, step: int, parts: dict[str, Any]) -> None:
    """Write this rank's checkpoint. Each rank writes its own file: its parameters are its own."""
    path = folder / f"step-{step:08}" / f"rank-{dist.get_rank()}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def _resume(folder: Path, parts: dict[str, Any]) -> int:
    """Load the newest checkpoint that all ranks have written, and return its step."""
    names = [f"rank-{rank}.pt" for rank in range(dist.get_world_size())]
    whole = [path for path in sorted(folder.glob("step-*")) if all((path / name).exists() for name in names)]
    if not whole:
        sys.exit(f"there is no checkpoint of {len(names)} ranks in {folder}; start without --resume")
    state = torch.load(whole[-1] / names[dist.get_rank()], map_location="cpu", weights_only=True)
    for name, part in parts.items():  # Gossip last, because it compares the model with its state
        part.load_state_dict(state[name])
    return int(state["step"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=BYTE_PRESETS, default="byte-1m", help="model size")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=8, help="samples for each rank and step")
    parser.add_argument("--lr", type=float, help="default: 0.002, or 0.015 with --muon")
    parser.add_argument("--muon", action="store_true", help="matrices take steps of Muon")
    parser.add_argument("--topology", default="auto", help="who averages with whom")
    parser.add_argument("--slack", type=int, default=0, help="iterations that a message may be late")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/torchrun_gossip"))
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
