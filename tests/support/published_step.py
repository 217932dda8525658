"""A naive implementation of DeMo's published step, the reference for the optimizer with float values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from support.ranks import DECAY, FLOAT, FLOAT_SHAPES, RANKS, RATE, gradients_of, parameters_of


class PublishedStep:
    """The published step for all ranks at once, chunk by chunk and number by number (arXiv 2411.19870, algorithm 1 and
    the code published with it)."""

    def __init__(self) -> None:
        self.theta = [parameter.detach().double().numpy() for parameter in parameters_of(FLOAT_SHAPES)]
        self.delta = [[np.zeros(shape) for shape in FLOAT_SHAPES] for _ in range(RANKS)]
        self.unclear = [np.zeros(shape, bool) for shape in FLOAT_SHAPES]

    def step(self, number: int) -> None:
        for index, shape in enumerate(FLOAT_SHAPES):
            theta = self.theta[index] * (1 - RATE * DECAY)
            kept: dict[tuple[int, int, int], list[float]] = {}
            for rank in range(RANKS):
                gradient = gradients_of(FLOAT_SHAPES, number, rank)[index].double().numpy()
                delta = FLOAT["compression_decay"] * self.delta[rank][index] + RATE * gradient
                own = self.largest(delta)
                self.delta[rank][index] = delta - self.back(own, shape)
                for key, value in own.items():
                    kept.setdefault(key, []).append(value)
            step = self.back({key: sum(values) / len(values) for key, values in kept.items()}, shape)
            # near zero, the sign depends on the order of summation
            self.unclear[index] |= np.abs(step) < 1e-7
            self.theta[index] = theta - RATE * np.sign(step)

    def chunks(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Rows and columns of the matrix and of a chunk. A chunk's edges are the largest divisors up to the chunk
        size."""
        rows = shape[0] if len(shape) > 1 else 1
        columns = math.prod(shape) // rows
        edge = int(FLOAT["compression_chunk"])
        high = max(d for d in range(1, edge + 1) if rows % d == 0)
        wide = max(d for d in range(1, edge + 1) if columns % d == 0)
        return rows, columns, high, wide

    def largest(self, delta: Any) -> dict[tuple[int, int, int], float]:
        """The k largest coefficients of each chunk: (row, column of the chunk, offset in it) → value."""
        rows, columns, high, wide = self.chunks(delta.shape)
        matrix, found = delta.reshape(rows, columns), {}
        for row in range(0, rows, high):
            for column in range(0, columns, wide):
                chunk = matrix[row : row + high, column : column + wide]
                flat = (cosines(high) @ chunk @ cosines(wide).T).reshape(-1)
                for offset in sorted(range(flat.size), key=lambda at: -abs(flat[at]))[: int(FLOAT["compression_topk"])]:
                    found[row, column, offset] = float(flat[offset])
        return found

    def back(self, kept: dict[tuple[int, int, int], float], shape: tuple[int, ...]) -> Any:
        rows, columns, high, wide = self.chunks(shape)
        out = np.zeros((rows, columns))
        for (row, column, offset), value in kept.items():
            wave = np.outer(cosines(high)[offset // wide], cosines(wide)[offset % wide])
            out[row : row + high, column : column + wide] += value * wave
        return out.reshape(shape)


def cosines(edge: int) -> Any:
    """The matrix of the orthonormal DCT-II. Rows are frequencies."""
    at = np.arange(edge)
    table = np.sqrt(2 / edge) * np.cos(np.pi * (2 * at + 1) * at[:, None] / (2 * edge))
    table[0] = math.sqrt(1 / edge)
    return table
