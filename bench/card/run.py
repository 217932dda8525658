"""One run on a card, timed. The card is waited for only where the held-out loss is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from bench.card.arms import ARMS, CardMethod, make_method
from bench.card.model import CardProblem
from bench.card.plan import MODELS, CardRun, Line
from bench.convergence.run import name_of, schedule_of
from bench.convergence.text import Text

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
    rounds = max(1, run.tokens // run.round_tokens)
    schedule = schedule_of(run.rate, rounds * arm.local_steps)
    problem = CardProblem(model.spec, text, run.seed, device)
    method = make_method(problem, arm, schedule, run.swarm)
    curve, bits, up, speed = _rounds(run, rounds, problem, method, lambda left: _check(until, left))
    final = float(problem.held_out_loss(_samples_of(HELD_OUT_TOKENS, run)))
    parameters = sum(tensor.numel() for tensor in problem.parameters.values())
    return Line(
        run=run, parameters=parameters, batch=model.batch, loss=final, curve=curve, bits=bits,
        up=up / (parameters * model.batch), speed=speed, seconds=time.monotonic() - began, corpus=text.hash,
        card=name_of(device), torch=torch.__version__,
    )  # fmt: skip


def _check(until: float, left_s: float) -> None:
    if time.monotonic() + left_s > until:
        raise OutOfTime(f"{left_s:.0f} s more are needed")


def _rounds(
    run: CardRun, rounds: int, problem: CardProblem, method: CardMethod, check: Callable[[float], None]
) -> tuple[list[tuple[int, float]], float, float, float]:
    """Train; the curve, the means of bits and of bytes that a node sends a step, and tokens a second."""
    measured = {round(rounds * (point + 1) / CURVE_POINTS) for point in range(CURVE_POINTS)}
    steps, samples = ARMS[run.arm].local_steps, MODELS[run.model].samples
    curve, bits, up, evaluating = [], 0.0, 0.0, 0.0
    timed_from = min(UNTIMED_ROUNDS, rounds - 1)
    began = time.monotonic()
    for number in range(rounds):
        if number == timed_from:
            _wait(problem.device)
            began, evaluating = time.monotonic(), 0.0
        loss = method.train(number * steps, number * steps * samples)
        bits, up = bits + method.bits, up + method.up
        if number + 1 in measured:
            _wait(problem.device)
            before = time.monotonic()
            of_held_out = problem.held_out_loss(_samples_of(CURVE_TOKENS, run))
            curve.append(((number + 1) * run.round_tokens, float(of_held_out)))
            evaluating += time.monotonic() - before
            if not math.isfinite(curve[-1][1]):
                break
        elif (number + 1) % WAIT_EVERY == 0:
            loss.item()
            done = number + 1 - timed_from
            check((rounds - number - 1) * (time.monotonic() - began - evaluating) / max(1, done))
    _wait(problem.device)
    took = max(time.monotonic() - began - evaluating, 1e-9)
    done = number + 1
    return curve, bits / done, up / done, (done - timed_from) * run.round_tokens / took


def _samples_of(tokens: int, run: CardRun) -> int:
    """Held-out samples of so many tokens; fewer in a short run, so that it does not evaluate longer than it trains."""
    return max(1, min(tokens, run.tokens // 4) // MODELS[run.model].spec.context)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
