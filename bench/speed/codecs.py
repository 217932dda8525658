"""Compares the codec's forms for components with other codecs: `python -m bench.speed.codecs`

The alternatives are Rice coding in plain numpy, and constriction's range coder with a table of gaps. Components are
uniform, the worst case. Results are bits per component, without its sign.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import constriction
import numpy as np
from rich.console import Console
from rich.table import Table

from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.votes import Components, counts_of
from thinwire_proto.wire import component_codec
from thinwire_proto.wire.packing import Numbers, compress, pack_bits, unpack_bits

LAYOUT = TileLayout([Parameter(name="w", shape=(8192, 4096))])
KS = (1, 2, 4, 8, 16, 20, 32, 64, 128)
REPEATS = 5
TABLE_BITS = 10


@dataclass(frozen=True)
class Codec:
    """`write` gives bytes (or an object with a size in bytes), and `read` the components again."""

    name: str
    write: Callable[[Components], Any]
    read: Callable[[Any, int], Components]
    components_max: int = 4096  # of a tile


def main() -> None:
    table = Table(box=None, padding=(0, 2), title=f"{LAYOUT.parameters:,} parameters", title_justify="left")
    for title in ("k", "codec", "bits", "floor", "above", "encode", "decode"):
        table.add_column(title, justify="left" if title == "codec" else "right")
    for k in KS:
        components = uniform(k)
        floor = (math.lgamma(4097) - math.lgamma(k + 1) - math.lgamma(4097 - k)) / math.log(2) / k
        for codec in codecs():
            if k > codec.components_max:
                continue
            written = codec.write(components)
            if not np.array_equal(codec.read(written, len(components)), components):
                raise SystemExit(f"{codec.name} does not return the encoded components")
            bits = 8 * size_of(written) / len(components)
            speeds = [len(components) / seconds(work) / 1e6 for work in round_trip(codec, components, written)]
            table.add_row(
                str(k), codec.name, f"{bits:.3f}", f"{floor:.3f}", f"{bits / floor - 1:+.1%}",
                *(f"{speed:.0f} M/s" for speed in speeds),
            )  # fmt: skip
    Console(width=110).print(table)


def round_trip(codec: Codec, components: Components, written: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    return lambda: codec.write(components), lambda: codec.read(written, len(components))


def codecs() -> list[Codec]:
    return [
        Codec("gaps, zstandard", write_gaps, read_gaps),
        Codec("ranks", write_ranks, read_ranks, component_codec.MATRIX_RANKED_MAX),
        Codec("gaps, Rice", write_rice, read_rice),
        Codec("gaps, constriction", write_range, read_range),
    ]


def write_gaps(components: Components) -> bytes:
    return compress(component_codec._to_gaps(components))


def read_gaps(data: bytes, count: int) -> Components:
    components = np.empty(count, np.int64)
    component_codec._from_gaps(data, count, LAYOUT.components, components)
    return components


def write_ranks(components: Components) -> tuple[Numbers, bytes]:
    counts = counts_of(components, LAYOUT)
    groups = component_codec._groups(counts, LAYOUT) or []
    return counts, b"".join(component_codec._encode_group(components, group) for group in groups)


def read_ranks(data: tuple[Numbers, bytes], count: int) -> Components:
    return component_codec._decode_ranks(data[1], component_codec._groups(data[0], LAYOUT) or [], count)


def write_rice(components: Components) -> tuple[int, bytes, bytes]:
    """Write the lower bits as they are, and the rest of each gap in unary."""
    gaps = np.diff(components, prepend=-1) - 1
    lower = max(0, round(math.log2(max(1.0, math.log(2) * gaps.mean()))))
    ends = np.cumsum((gaps >> lower) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.uint8)
    unary[ends] = 1
    return lower, pack_bits(gaps & ((1 << lower) - 1), lower), np.packbits(unary).tobytes()


def read_rice(data: tuple[int, bytes, bytes], count: int) -> Components:
    lower, low, unary = data
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(unary, np.uint8)))[:count]
    upper = np.diff(ends, prepend=-1) - 1
    return np.cumsum((upper << lower | unpack_bits(np.frombuffer(low, np.uint8), count, lower)) + 1) - 1


def _table(counts: Numbers) -> Any:
    weights = (counts + 0.01).astype(np.float32)
    return constriction.stream.model.Categorical(weights / weights.sum(), perfect=False)


def write_range(components: Components) -> tuple[Numbers, int, bytes, Any]:
    """Write with a range coder and the frequencies of all gaps. The last bits of large gaps are written as they are."""
    gaps = np.diff(components, prepend=-1) - 1
    lower = max(0, int(gaps.max()).bit_length() - TABLE_BITS)
    symbols = (gaps >> lower).astype(np.int32)
    counts = np.bincount(symbols)
    coder = constriction.stream.queue.RangeEncoder()
    coder.encode(symbols, _table(counts))
    return counts, lower, pack_bits(gaps & ((1 << lower) - 1), lower), coder.get_compressed()


def read_range(data: tuple[Numbers, int, bytes, Any], count: int) -> Components:
    counts, lower, low, words = data
    symbols = constriction.stream.queue.RangeDecoder(words).decode(_table(counts), count).astype(np.int64)
    return np.cumsum((symbols << lower | unpack_bits(np.frombuffer(low, np.uint8), count, lower)) + 1) - 1


def size_of(written: Any) -> int:
    """Bytes of the encoded data. A table of gaps costs one byte an entry; counts of tiles cost nothing, as nearly all
    are equal."""
    if isinstance(written, bytes):
        return len(written)
    if isinstance(written[-1], bytes):
        return sum(len(part) for part in written if isinstance(part, bytes))
    counts, _, low, words = written
    return len(counts) + len(low) + 4 * len(words)


def uniform(k: int) -> Components:
    rng = np.random.default_rng(k)
    return np.concatenate([np.sort(rng.permutation(4096)[:k]) + 4096 * tile for tile in range(LAYOUT.tiles)])


def seconds(work: Callable[[], Any]) -> float:
    """Minimum time of several runs."""
    best = math.inf
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
