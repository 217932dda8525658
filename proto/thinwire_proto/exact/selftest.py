"""Self-test: does this device decode and step exactly? Runs extreme tiles through the code path of a replica.

The expected result comes from plain int64 arithmetic in numpy. A decode in floating point serves as negative control:
the test must tell it apart from the exact one, otherwise it proves nothing. The step of the rule `merged_muon` is
compared with itself in plain numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from thinwire_proto.contract import ADAM_BETAS, WEIGHT_SUM_MAX, Contract, CorpusSpec, DemoSpec, Parameter, RuleSpec
from thinwire_proto.contract.rules.merged_muon import MOMENTUM, SECOND, MergedMuonSpec, rows_of
from thinwire_proto.exact.apply import SMALLEST_NORMAL
from thinwire_proto.exact.decode import CLIP, SHIFT, VOTE_MAX
from thinwire_proto.exact.fingerprint import fingerprint
from thinwire_proto.exact.magnitudes import rounded
from thinwire_proto.exact.merged_step import CLIP_SQUARES, EPSILON, power, take_merged_step
from thinwire_proto.exact.mix64 import GOLDEN, MASK, mix64
from thinwire_proto.exact.orthogonal import BITS, SMALLEST
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.transform import dct_table, inverse
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, Merged
from thinwire_proto.muon import ADAMW_STEP, COEFFICIENTS, ITERATIONS

STEP = 7
NONCE = 2**64 - 3
RATE = float(np.float32(1e-3))
DECAY = float(np.float32(1 - 1e-5))
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SelfTest:
    """Result of the self-test.

    `exact`: every bit is as expected. `control_differs`: the floating-point decode was told apart, as it must be.
    """

    exact: bool
    control_differs: bool
    detail: str

    @property
    def passed(self) -> bool:
        return self.exact and self.control_differs


def extreme_tiles() -> Int64:
    """Merged votes [n, 64, 64] at the bounds of the decode.

    All votes aligned with a basis column, single components, checkerboards, and random tiles from sparse to full.
    """
    table = np.array(dct_table(), np.int64)
    tiles = [np.zeros((64, 64), np.int64)]
    for row, column in ((0, 0), (1, 63), (31, 32), (63, 63)):
        aligned = np.where(table[:, row] < 0, -1, 1)[:, None] * np.where(table[:, column] < 0, -1, 1)[None]
        tiles += [aligned, WEIGHT_SUM_MAX * aligned]  # the largest possible sums at this position
        for value in (1, -WEIGHT_SUM_MAX):
            single = np.zeros((64, 64), np.int64)
            single[row, column] = value
            tiles.append(single)
    rng = np.random.default_rng(1)
    for density, largest in ((0.008, 1), (0.03, 3), (0.1, 100), (1.0, WEIGHT_SUM_MAX), (1.0, 1)):
        values = rng.integers(-largest, largest + 1, (8, 64, 64))
        tiles += list(np.where(rng.random((8, 64, 64)) < density, values, 0))
    return np.stack(tiles)


def reference_signs(merged: Int64, step: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Decode in plain int64: merged [n, 64, 64] or [n, 64] to (positive, same shape; stepped [n])."""
    x = reference_integers(reference_scaled(merged))
    flat = merged.reshape(len(merged), -1)
    even = ((np.arange(flat.shape[1]) + step) % 2 == 0).reshape(merged.shape[1:])
    return (x > 0) | ((x == 0) & even), np.abs(flat).max(1) > 0


def reference_scaled(merged: Int64) -> Int64:
    """V' of merged votes [n, 64, 64] or [n, 64], in the same shape."""
    flat = merged.reshape(len(merged), -1)
    largest = np.abs(flat).max(1, keepdims=True)
    scaled = np.sign(flat) * ((2 * VOTE_MAX * np.abs(flat) + largest) // np.maximum(2 * largest, 1))
    same_shape: Int64 = scaled.reshape(merged.shape)
    return same_shape


def reference_integers(scaled: Int64) -> Int64:
    """X of V' [n, 64, 64] or [n, 64], in the same shape."""
    table: Int64 = np.array(dct_table(), np.int64)
    first: Int64 = table.T @ scaled if scaled.ndim == 3 else scaled
    if scaled.ndim == 3:
        first = (first + SHIFT // 2) // SHIFT
    x: Int64 = first @ table
    return x


def reference_change(merged: Int64, demo: DemoSpec, step: int) -> npt.NDArray[np.float32]:
    """The amount subtracted from each parameter at RATE, without magnitudes.

    merged: [n, 64, 64] or [n, 64]; the result has the same shape.
    """
    rate = np.float32(RATE)
    if demo.magnitude != "clipped":
        positive, stepped = reference_signs(merged, step)
        signed = np.where(positive, rate, -rate) * stepped.reshape(-1, *[1] * (merged.ndim - 1))
        return np.asarray(signed, np.float32)
    x = reference_integers(reference_scaled(merged))
    change = np.zeros(x.shape, np.float32)
    for tile, total in enumerate(np.abs(x).reshape(len(x), -1).sum(1).tolist()):
        if total:
            unit = np.float32(RATE * x[tile].size / (CLIP * total))  # Python floats, one tile at a time
            change[tile] = np.clip(x[tile].astype(np.float32) * unit, -rate, rate)
    return change


def run_selftest(demo: DemoSpec, device: torch.device | str, rule: RuleSpec | None = None) -> SelfTest:
    """Step a small replica on `device` through extreme tiles, with votes, with magnitudes, and with these in levels;
    and take steps of the rule, if it is one that replicas take. Compare each bit."""
    if isinstance(rule, MergedMuonSpec):
        demo = DemoSpec(magnitude=demo.magnitude)
    matrix = extreme_tiles()  # [n, 64, 64]
    vector = matrix[:, :, 0].copy()  # [n, 64]
    tiles = len(matrix)
    contract = _contract(demo, tiles)
    rng = np.random.default_rng(2)
    start = {
        "matrix": rng.normal(0, 0.02, (64, 64 * tiles)).astype(np.float32),
        "vector": rng.normal(0, 0.02, 64 * tiles).astype(np.float32),
    }
    start["vector"][:32] = SMALLEST_NORMAL  # the decay makes these subnormal
    votes = np.concatenate([matrix.reshape(-1), vector.reshape(-1)])
    positions = np.flatnonzero(votes)
    merged_votes = Merged(positions, votes[positions].astype(np.int16))
    replica = Replica(contract, {n: torch.from_numpy(t.copy()).to(device) for n, t in start.items()}, STEP, b"")
    replica.apply(Update(STEP, RATE, DECAY, merged_votes), b"")
    different = 0
    for name, merged in (("matrix", matrix), ("vector", vector)):
        different += _step_and_compare(start, name, reference_change(merged, demo, STEP), replica)

    scaled = {"matrix": reference_scaled(matrix), "vector": reference_scaled(vector)}
    values = np.concatenate([tiles_of_kind.reshape(-1) for tiles_of_kind in scaled.values()])
    positions = np.flatnonzero(values)
    has_votes = [bool(tile.any()) for tiles_of_kind in scaled.values() for tile in tiles_of_kind]
    scales = np.where(has_votes, rounded(10.0 ** rng.uniform(-12, -4, 2 * tiles)), np.float32(0))
    sized = Merged(positions, values[positions].astype(np.int16), scales[scales > 0])
    for update in (sized, Levels(VOTE_MAX, values.astype(np.int8), scales)):
        replica.apply(Update(replica.step, RATE, DECAY, update), b"")
        for (name, tiles_of_kind), scale in zip(scaled.items(), np.split(scales, 2), strict=True):
            x = reference_integers(tiles_of_kind).astype(np.float32)
            different += _step_and_compare(start, name, scale.reshape(-1, *[1] * (x.ndim - 1)) * x, replica)
    if isinstance(rule, MergedMuonSpec):
        different += merged_steps_differ(rule, device)
    control = _control_differs(matrix, device)
    words = "every bit as expected" if not different else f"{different} parameters differ from the integer reference"
    if fingerprint([replica.tensors["vector"]], NONCE) != _reference_fingerprint(replica.tensors["vector"]):
        different, words = different + 1, f"{words}; the fingerprint is not that of the integer reference"
    if not control:
        words += "; the float decode was not told apart, so the test proves nothing"
    return SelfTest(different == 0, control, words)


def _step_and_compare(theta: dict[str, Float32], name: str, change: Float32, replica: Replica) -> int:
    """Step one tensor of the reference in place, and return in how many parameters the replica differs from it.

    change: of the tensor's tiles, [n, 64, 64] or [n, 64].
    """
    if change.ndim == 3:
        change = change.transpose(1, 0, 2)  # the tiles lie side by side
    theta[name] = _flushed(_flushed(theta[name] * np.float32(DECAY)) - change.reshape(theta[name].shape))
    found = replica.tensors[name].cpu().numpy()
    return int((theta[name].view(np.int32) != found.view(np.int32)).sum())


def _reference_fingerprint(tensor: torch.Tensor) -> int:
    """The formula of `thinwire_proto.exact.fingerprint`, one Python integer at a time."""
    key = mix64(NONCE + GOLDEN)
    bits = tensor.cpu().numpy().view(np.uint32).tolist()
    return sum(mix64((position << 32 | value) ^ key) for position, value in enumerate(bits)) & MASK


def _control_differs(matrix: Int64, device: torch.device | str) -> bool:
    """Whether a decode in floating point, as published for DeMo, is told apart from the exact one."""
    coefficients = torch.from_numpy(matrix.astype(np.float32)).to(device)
    x = inverse(coefficients).cpu().numpy()
    expected, _ = reference_signs(matrix, STEP)
    return bool((np.where(x == 0, expected, x > 0) != expected).any())


def _flushed(values: Any) -> Any:
    return np.where(np.abs(values) < np.float32(SMALLEST_NORMAL), np.float32(0), values)


def _contract(demo: DemoSpec, tiles: int) -> Contract:
    return Contract(
        demo=demo,
        data=CorpusSpec(corpus_hash="0" * 64, corpus_bytes=1 << 20, train_bytes=1 << 20),
        parameters=(Parameter(name="matrix", shape=(64, 64 * tiles)), Parameter(name="vector", shape=(64 * tiles,))),
    )


Float64 = npt.NDArray[np.float64]
SHAPES = ((48, 80), (96, 40), (7, 1))
STEPS = 3
MUON_RATE = float(np.float32(0.02))


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
        take_merged_step(tensors, moments, on_device, rule, learning_rate=MUON_RATE, decay=DECAY, step=step)
        for one in parameters:
            _step(expected, one, gradients[one.name], rule, step)
    return sum(
        int((values.view(np.int32) != found[name].cpu().numpy().view(np.int32)).sum())
        for name, values in expected.items()
    )


def _step(state: dict[str, Float32], of: Parameter, gradient: Float32, rule: MergedMuonSpec, step: int) -> None:
    mu, rate, before = np.float32(rule.momentum), MUON_RATE, state[MOMENTUM + of.name]
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
