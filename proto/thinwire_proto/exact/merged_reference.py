"""The step of the rule `merged_muon` once more, in plain numpy: the self-test compares a device with it, bit by bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from thinwire_proto.contract import ADAM_BETAS, Parameter
from thinwire_proto.contract.rules.merged_muon import MOMENTUM, SECOND, MergedMuonSpec, rows_of
from thinwire_proto.exact.apply import SMALLEST_NORMAL
from thinwire_proto.exact.merged_step import CLIP_SQUARES, EPSILON, power, take_merged_step
from thinwire_proto.exact.orthogonal import BITS, SMALLEST
from thinwire_proto.muon import ADAMW_STEP, COEFFICIENTS, ITERATIONS

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
SHAPES = ((48, 80), (96, 40), (7, 1))
STEPS = 3
RATE, DECAY = float(np.float32(0.02)), float(np.float32(1 - 1e-5))


def merged_steps_differ(rule: MergedMuonSpec, device: torch.device | str) -> int:
    """Take a few steps of small tensors on a device, and return how many of their numbers, or of their moments', differ
    from those of the reference."""
    parameters = [Parameter(name=f"m{place}", shape=shape) for place, shape in enumerate(SHAPES)]
    embedding = (*rule.adamw_for, "embed")[0]
    parameters += [Parameter(name=embedding, shape=(20, 12)), Parameter(name="vector", shape=(33,))]
    rng = np.random.default_rng(5)
    expected = {one.name: rng.normal(0, 0.02, one.shape).astype(np.float32) for one in parameters}
    expected |= {one.name: np.zeros(one.shape, np.float32) for one in rule.moments(parameters)}
    found = {name: torch.from_numpy(values.copy()).to(device) for name, values in expected.items()}
    tensors = {one.name: found[one.name] for one in parameters}
    moments = {one.name: found[one.name] for one in rule.moments(parameters)}
    for step in range(STEPS):
        gradients = {one.name: rng.normal(0, 10.0 ** -(3 * step), one.shape).astype(np.float32) for one in parameters}
        gradients["m1"][5:] = 0 if step else gradients["m1"][5:]
        if step == STEPS - 1:
            gradients[embedding][3] *= 1e6  # a row that shouts
        on_device = {name: torch.from_numpy(values).to(device) for name, values in gradients.items()}
        take_merged_step(tensors, moments, on_device, rule, learning_rate=RATE, decay=DECAY, step=step)
        for one in parameters:
            _step(expected, one, gradients[one.name], rule, step)
    return sum(
        int((values.view(np.int32) != found[name].cpu().numpy().view(np.int32)).sum())
        for name, values in expected.items()
    )


def _step(state: dict[str, Float32], of: Parameter, gradient: Float32, rule: MergedMuonSpec, step: int) -> None:
    mu, rate, before = np.float32(rule.momentum), RATE, state[MOMENTUM + of.name]
    if rule.takes(of):
        momentum = _flushed(before * mu + _flushed(gradient))
        size = rate * (ADAMW_STEP * math.sqrt(max(of.shape)))
        change = reference_orthogonal((momentum * mu + _flushed(gradient)).astype(np.float64)) * size
    else:
        rows, beta = rows_of(of), ADAM_BETAS[1]
        unbiased = (1 - rule.momentum) / (1 - power(rule.momentum, step + 1)) * math.sqrt(1 - power(beta, step + 1))
        by_row = [one.reshape(rows, -1).copy() for one in (before, gradient)]
        second, change = state[SECOND + of.name].copy(), np.zeros(by_row[0].shape)
        for row, given in enumerate(by_row[1]):
            values, whole = given, _rounded(given.astype(np.float64)).tolist()
            squares = math.fsum(value * value for value in whole) / len(whole)
            most = float(second[row]) * (CLIP_SQUARES / (1 - power(beta, step))) if step else math.inf
            if 0 < most < squares:
                values, squares = values * np.sqrt(np.float64(np.float32(most / squares))).astype(np.float32), most
            second[row] = _flushed(second[row] * np.float32(beta) + _flushed(np.float32(squares * (1 - beta))))
            root = float(np.float32(math.sqrt(float(second[row]))))
            by_row[0][row] = _flushed(by_row[0][row] * mu + _flushed(values))
            each = (1 / (root + EPSILON)) * (rate * rule.adamw_rate * unbiased)
            change[row] = by_row[0][row].astype(np.float64) * each
        momentum, state[SECOND + of.name] = by_row[0].reshape(of.shape), second
    theta = _flushed(state[of.name] * np.float32(DECAY))
    state[of.name] = _flushed(theta - change.astype(np.float32).reshape(of.shape))
    state[MOMENTUM + of.name] = momentum


def reference_orthogonal(matrix: Float64) -> Float64:
    """`orthogonal_exact` with products of Python's integers."""
    a, b, c = COEFFICIENTS
    if matrix.shape[0] > matrix.shape[1]:
        wide: Float64 = reference_orthogonal(matrix.T).T
        return wide
    x = _rounded(matrix)
    squares = math.fsum(value * value for value in x.reshape(-1).tolist())
    if squares == 0:
        return np.zeros_like(x)
    x = x * (1 / math.sqrt(squares))
    for _ in range(ITERATIONS):
        x = _rounded(x)
        square = _rounded(_product(x, x.T))
        x = _product(_rounded(_product(square, square) * c + square * b), x) + x * a
    return x


def _rounded(values: Float64) -> Float64:
    largest = float(np.abs(values).max())
    if largest < SMALLEST:
        return np.zeros_like(values)
    unit = _unit(largest)
    found: Float64 = np.rint(values / unit) * unit
    return found


def _unit(largest: float) -> float:
    return math.ldexp(1.0, math.frexp(largest)[1] - 1 - (BITS - 2))


def _product(left: Float64, right: Float64) -> Float64:
    """The product of matrices of whole numbers times a power of two each, by integers."""
    units = [_smallest_unit(side) for side in (left, right)]
    whole = [np.rint(side / unit).astype(np.int64) for side, unit in zip((left, right), units, strict=True)]
    found: Float64 = (whole[0] @ whole[1]).astype(np.float64) * units[0] * units[1]
    return found


def _smallest_unit(values: Float64) -> float:
    """A power of two of which all values are whole multiples, as they are rounded."""
    largest = float(np.abs(values).max())
    return _unit(largest) / 2 if largest else 1.0


def _flushed(values: Any) -> Any:
    return np.where(np.abs(values) < np.float32(SMALLEST_NORMAL), np.float32(0), values)
