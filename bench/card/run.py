"""One run on a card, timed. The card is waited for only where the held-out loss is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from bench.card.arms import ARMS, CardMethod, make_method
from bench.card.model import CardProblem
from bench.card.plan import MODELS, CardRun, Line
from bench.convergence.growth import Stage, schedules_of, stages_of
from bench.convergence.method import Growing, SwarmSize
from bench.convergence.run import name_of, schedule_of
from bench.convergence.text import Text
from thinwire_proto.contract import ScheduleSpec

CURVE_POINTS = 8
CURVE_TOKENS, HELD_OUT_TOKENS = 1 << 18, 1 << 20
UNTIMED_ROUNDS = 4
"""The first rounds allocate memory and compile."""
WAIT_EVERY = 32
"""Rounds after which the program waits for the card, so that it does not queue work without end."""


class OutOfTime(Exception):
    """The run would not end in time."""


def carry_out(run: CardRun, text: Text, device: torch.device, until: float) -> Line:
    """Carry out a run. until: when it must have ended, on `time.monotonic`; raises OutOfTime as soon as that is
    clear."""
    began = time.monotonic()
    model, arm = MODELS[run.model], ARMS[run.arm]
    stages = stages_of(arm.growth, max(1, run.tokens // run.round_tokens))
    schedules = schedules_of(schedule_of(run.rate, stages[-1].ends * arm.local_steps), arm.growth, stages)
    problem = CardProblem(model.spec, text, run.seed, device)
    method = make_method(problem, arm, schedules[0], run.swarm)
    parts = list(zip(stages, schedules, strict=True))
    curve, bits, up, speed = _rounds(run, parts, problem, method, lambda left: _check(until, left))
    final = float(problem.held_out_loss(_samples_of(HELD_OUT_TOKENS, run)))
    parameters = sum(tensor.numel() for tensor in problem.parameters.values())
    return Line(
        run=run, parameters=parameters, batch=model.batch, loss=final, curve=curve, bits=bits,
        up=up / parameters, speed=speed, seconds=time.monotonic() - began, corpus=text.hash,
        card=name_of(device), torch=torch.__version__,
    )  # fmt: skip


def _check(until: float, left_s: float) -> None:
    if time.monotonic() + left_s > until:
        raise OutOfTime(f"{left_s:.0f} s more are needed")


def _rounds(
    run: CardRun,
    parts: Sequence[tuple[Stage, ScheduleSpec]],
    problem: CardProblem,
    method: CardMethod,
    check: Callable[[float], None],
) -> tuple[list[tuple[int, float]], float, float, float]:
    """Train; the curve, the mean of bits of a step, bytes that a node sends a token, and tokens a second."""
    rounds = parts[-1][0].ends
    measured = {round(rounds * (point + 1) / CURVE_POINTS) for point in range(CURVE_POINTS)}
    steps, samples = ARMS[run.arm].local_steps, MODELS[run.model].samples
    curve, bits, up, evaluating = [], 0.0, 0.0, 0.0
    timed_from, tokens, untimed = min(UNTIMED_ROUNDS, rounds - 1), 0, 0
    began = time.monotonic()
    for number in range(rounds):
        if number == timed_from:
            _wait(problem.device)
            began, evaluating, untimed = time.monotonic(), 0.0, tokens
        stage, schedule = next(one for one in parts if number < one[0].ends)
        if number == stage.begins > 0:
            assert isinstance(method, Growing)
            method.grow(schedule, SwarmSize(run.nodes, samples * stage.times), stage.times)
        loss = method.train(number * steps, stage.steps_before(number) * steps * samples)
        bits, up = bits + method.bits, up + method.up * steps
        tokens = stage.steps_before(number + 1) * run.round_tokens
        if number + 1 in measured:
            _wait(problem.device)
            before = time.monotonic()
            of_held_out = problem.held_out_loss(_samples_of(CURVE_TOKENS, run))
            curve.append((tokens, float(of_held_out)))
            evaluating += time.monotonic() - before
            if not math.isfinite(curve[-1][1]):
                break
        elif (number + 1) % WAIT_EVERY == 0:
            loss.item()
            took = time.monotonic() - began - evaluating
            check((run.tokens - tokens) * took / max(1, tokens - untimed))
    _wait(problem.device)
    took = max(time.monotonic() - began - evaluating, 1e-9)
    return curve, bits / (number + 1), up / tokens, (tokens - untimed) / took


def _samples_of(tokens: int, run: CardRun) -> int:
    """Held-out samples of so many tokens; fewer in a short run, so that it does not evaluate longer than it trains."""
    return max(1, min(tokens, run.tokens // 4) // MODELS[run.model].spec.context)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
