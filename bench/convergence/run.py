"""One run of the study, in its own process: an arm with a learning rate, a seed, a number of nodes and of tokens.

python -m bench.convergence.run FOLDER RUN THREADS   RUN: a `Run` in JSON. Prints `tokens N` as progress, and adds the
result to FOLDER's file of results. A run that is stopped goes on from its last checkpoint there, and prints `resumed N`
first.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.convergence.all_reduce import AllReduceAdamW, AllReduceSignum, DiLoCo
from bench.convergence.arms import ARMS, WITHOUT_A_CENTRE, Arm
from bench.convergence.batched import BatchedVotingMethod
from bench.convergence.batched_local import BatchedMuonMethod, can_be_batched
from bench.convergence.checkpoint import Checkpoint, RunState
from bench.convergence.compressed import LocalStepsMethod, PublishedMethod, VotingMethod
from bench.convergence.decentralized import GossipMethod
from bench.convergence.method import Method, SwarmSize
from bench.convergence.one_way import PushMethod
from bench.convergence.problem import Problem
from bench.convergence.text import stdlib
from thinwire_proto.contract import DecoderSpec, ScheduleSpec
from thinwire_proto.models import BYTE_PRESETS

METHODS: dict[str, Callable[[Problem, Arm, ScheduleSpec, SwarmSize], Method]] = {
    "adamw": AllReduceAdamW,
    "signum": AllReduceSignum,
    "diloco": DiLoCo,
    "reference": PublishedMethod,
    "votes": VotingMethod,
    "local": LocalStepsMethod,
    "gossip": GossipMethod,
    "push": PushMethod,
}
ALL_REDUCE_KINDS = ("adamw", "signum", "diloco")
RESULTS = "runs.jsonl"
"""The file of results in a study's folder: one line a run."""
CURVE_POINTS = 16
CURVE_SAMPLES = 64
"""Held-out samples for a point of the curve. They are harder or easier than those of `loss`, so the two differ."""
WARMUP_STEPS, WARMUP_SHARE_MAX = 50, 0.2
"""The warm-up is a number of steps, not a share, so that a rate means the same in the sweep and in a
full-length run."""
PROGRESS_S = 2.0


@dataclass(frozen=True)
class Size:
    """The sizes that all runs of a study share.

    samples: of all nodes in a local step. held_out: samples of the final
    evaluation.
    """

    preset: str = "byte-1m"
    samples: int = 16
    held_out: int = 512

    @property
    def spec(self) -> DecoderSpec:
        """The model of the preset."""
        return BYTE_PRESETS[self.preset]


@dataclass(frozen=True)
class Run:
    """One run, fully specified."""

    arm: str
    rate: float
    seed: int
    nodes: int
    tokens: int
    size: Size = Size()

    @property
    def round_tokens(self) -> int:
        """Tokens of all nodes between two exchanges."""
        return self.size.samples * self.size.spec.context * ARMS[self.arm].local_steps

    @property
    def name(self) -> str:
        """Name of the checkpoint; unique within a folder of the same model and text."""
        samples = "" if self.size.samples == Size.samples else f"-samples{self.size.samples}"
        return f"{self.arm}-{self.rate:g}-nodes{self.nodes}-seed{self.seed}-{self.tokens}{samples}"


@dataclass(frozen=True)
class Result:
    """The result of a run.

    curve: (tokens, held-out loss in nats a token). up, down: bytes of one node over the whole run. corpus: its hash.
    single_node_loss: in a gossip run, of a node's own parameters; `loss` is that of the mean model. device: what
    computed it, "cpu" or the name of a card.
    """

    run: Run
    settings: dict[str, object]
    curve: list[tuple[int, float]]
    loss: float
    up: float
    down: float
    parameters: int
    seconds: float
    corpus: str
    torch: str
    single_node_loss: float | None = None
    device: str = "cpu"

    @property
    def bytes(self) -> float:
        return self.up + self.down


def train(run: Run, device: torch.device, checkpoint: Checkpoint | None = None) -> Result:
    """Carry out a run, and print its progress. checkpoint: where its state is kept meanwhile, and taken from."""
    text, arm = stdlib(), ARMS[run.arm]
    rounds = run.tokens // run.round_tokens
    state = checkpoint.load() if checkpoint else None
    if state is None:
        problem = Problem(run.size.spec, text, run.seed, device)
        state = RunState(problem, make_method(problem, arm, run, rounds))
    else:
        state.problem.read(text)
        print(f"resumed {state.next_round * run.round_tokens}", flush=True)
    _train_rounds(run, rounds, state, checkpoint)
    began = time.monotonic()
    problem, method, held_out = state.problem, state.method, run.size.held_out
    final = problem.held_out_loss(held_out)
    size = sum(tensor.numel() for tensor in problem.parameters.values())
    seconds = state.seconds + time.monotonic() - began
    single = method.single_node_loss(held_out) if isinstance(method, GossipMethod) else None
    settings, up, down = settings_of(arm), state.traffic.up, state.traffic.down
    on = name_of(device)
    return Result(run, settings, state.curve, final, up, down, size, seconds, text.hash, torch.__version__, single, on)


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def checkpoint_of(run: Run, folder: Path, device: torch.device) -> Checkpoint:
    """The run's checkpoint. One of another device is another: its tensors, and its method, are that device's."""
    made_by = settings_of(ARMS[run.arm]) | {"device": name_of(device)}
    return Checkpoint(folder, run.name, made_by, stdlib().hash)


def _train_rounds(run: Run, rounds: int, state: RunState, checkpoint: Checkpoint | None) -> None:
    """Train all rounds that are left, or until the loss is not finite; the held-out loss is not either then."""
    measured = {round(rounds * (point + 1) / CURVE_POINTS) for point in range(CURVE_POINTS)}
    began = printed = time.monotonic()
    before_s = state.seconds
    for number in range(state.next_round, rounds):
        step = number * ARMS[run.arm].local_steps
        loss, traffic = state.method.round(step, step * run.size.samples)
        state.traffic += traffic
        state.next_round = number + 1
        if not math.isfinite(loss):
            return
        tokens = state.next_round * run.round_tokens
        if state.next_round in measured:
            state.curve.append((tokens, state.problem.held_out_loss(CURVE_SAMPLES)))
        state.seconds = before_s + time.monotonic() - began
        if checkpoint:
            checkpoint.save_if_due(state)
        if time.monotonic() - printed > PROGRESS_S:
            printed = time.monotonic()
            print(f"tokens {tokens}", flush=True)


def make_method(problem: Problem, arm: Arm, run: Run, rounds: int) -> Method:
    steps = rounds * arm.local_steps
    schedule = ScheduleSpec(
        learning_rate=run.rate, warmup_steps=min(WARMUP_STEPS, int(steps * WARMUP_SHARE_MAX)), steps=steps
    )
    method = METHODS[arm.kind]
    if problem.device.type != "cpu":  # a CPU does not wait for launches
        if method is VotingMethod:
            method = BatchedVotingMethod
        elif can_be_batched(arm):
            method = BatchedMuonMethod
    return method(problem, arm, schedule, SwarmSize(run.nodes, run.size.samples))


def settings_of(arm: Arm) -> dict[str, object]:
    """The settings of an arm as written to result files: without rates, and without settings that its kind does not
    use."""
    settings: dict[str, object] = {"kind": arm.kind}
    if arm.kind in ALL_REDUCE_KINDS:
        return settings | {"beta": arm.beta, "local_steps": arm.local_steps}
    if arm.kind in WITHOUT_A_CENTRE:
        settings |= {"beta": arm.beta, "codec": arm.codec, "gamma": arm.gamma, "noise": arm.is_noise_corrected}
        settings |= {"window": arm.window} if arm.window > 1 else {}
        settings |= {"pull": arm.pull} if arm.pull else {}
        return settings | ({"momentum": arm.momentum} if arm.momentum else {})
    unused = {name for name in ("update_topk", "update_levels") if not getattr(arm.demo, name)}
    settings["demo"] = arm.demo.model_dump(exclude=unused)
    if arm.kind != "local":
        return settings
    rule = {"name": arm.rule.kind} | arm.rule.model_dump(mode="json", exclude={"kind"})  # as recorded results have it
    return settings | {"rule": rule, "local_steps": arm.local_steps}


# results on disk


def write(result: Result, folder: Path) -> None:
    """Add a result to the file. Other runs may do so at the same time."""
    line = json.dumps(asdict(result)) + "\n"
    with (folder / RESULTS).open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line)


def read(folder: Path) -> list[Result]:
    """The results in the file, sorted by name; of a run that was repeated, the newest. Raises ValueError for a line
    that is no result, and names it."""
    path = folder / RESULTS
    found: dict[tuple[Size, str], Result] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), start=1):
        try:
            result = _result(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: is no result: {error!r}; remove the line") from None
        found[result.run.size, result.run.name] = result
    return sorted(found.values(), key=lambda result: result.run.name)


def _result(document: dict[str, Any]) -> Result:
    """Its rate has the three digits of swept rates, also if the run was started with more."""
    run = document.pop("run")
    run["rate"] = float(f"{run['rate']:.3g}")
    size = Size(**run.pop("size"))
    curve = [(int(tokens), float(loss)) for tokens, loss in document.pop("curve")]
    return Result(run=Run(**run, size=size), curve=curve, **document)


def main() -> None:
    folder, given, threads = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    os.nice(5)  # a study runs for hours next to other work
    torch.set_num_threads(threads)
    run = Run(**given | {"size": Size(**given["size"])})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = checkpoint_of(run, folder, device)
    write(train(run, device, checkpoint), folder)
    checkpoint.remove()


if __name__ == "__main__":
    main()
