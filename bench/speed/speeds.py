"""Speed of encode, decode and merge, in components a second on one core."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
import zstandard

from bench.speed.row import BenchRow
from bench.speed.synthetic import MATRIX, uniform_votes
from bench.speed.timing import interleaved, threads
from thinwire_proto.contract import Parameter
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merger, Votes
from thinwire_proto.wire.codec import decode_update, decode_votes, encode_update, encode_votes

K = 32
NODES = 4
CODEC_WANTED, MERGE_WANTED = 20.0, 50.0  # million components a second
MILLION = 1e6
TOPIC = "components per second, one core"


def pack_12_bits(votes: Votes) -> tuple[bytes, bytes]:
    """The baseline format: 12 bits for the position in the tile, and one bit for the sign.

    votes: an even number of components, k in each tile.
    """
    positions = (votes.components & (MATRIX_COMPONENTS - 1)).astype(np.uint16).reshape(-1, 2)
    first, second = positions[:, 0], positions[:, 1]
    out = np.empty((len(positions), 3), np.uint8)
    out[:, 0], out[:, 1], out[:, 2] = first >> 4, (first & 15) << 4 | second >> 8, second & 255
    return out.tobytes(), np.packbits(votes.positive).tobytes()


def unpack_12_bits(positions: bytes, signs: bytes, k: int) -> Votes:
    raw = np.frombuffer(positions, np.uint8).reshape(-1, 3).astype(np.int64)
    out = np.empty((len(raw), 2), np.int64)
    out[:, 0], out[:, 1] = raw[:, 0] << 4 | raw[:, 1] >> 4, (raw[:, 1] & 15) << 8 | raw[:, 2]
    tiles = np.arange(out.size // k, dtype=np.int64) * MATRIX_COMPONENTS
    components = (out.reshape(-1, k) + tiles[:, None]).ravel()
    return Votes(components, np.unpackbits(np.frombuffer(signs, np.uint8), count=out.size).astype(bool))


def merge_in_torch(all_votes: list[Votes], components: int) -> npt.NDArray[np.int16]:
    """The sum of the signs, with torch.index_add_."""
    total = torch.zeros(components, dtype=torch.int16)
    for votes in all_votes:
        signs = torch.from_numpy(votes.positive).to(torch.int16).mul_(2).sub_(1)
        total.index_add_(0, torch.from_numpy(votes.components), signs)
    return total.numpy()


def codec_rows(parameters: tuple[Parameter, ...] = MATRIX, k: int = K) -> Iterator[BenchRow]:
    layout = layout_of(parameters)
    all_votes = [uniform_votes(layout, k, seed) for seed in range(NODES)]
    votes, payload = all_votes[0], encode_votes(all_votes[0], layout)
    plain = pack_12_bits(votes)
    merger = Merger(layout.components)
    torch_total = torch.zeros(layout.components, dtype=torch.int16)

    def add() -> None:
        merger.add(votes, 1)

    def add_in_torch() -> None:
        signs = torch.from_numpy(votes.positive).to(torch.int16).mul_(2).sub_(1)
        torch_total.index_add_(0, torch.from_numpy(votes.components), signs)

    def body() -> bytes:
        """Merge the contributions and encode the update, as at the end of a round."""
        whole = Merger(layout.components)
        for one in all_votes:
            whole.add(one, 1)
        return encode_update(Update(0, 0.5, 1.0, whole.merged()), layout)

    def row(what: str, times: list[float], count: int, name: str, wanted: float | None) -> BenchRow:
        ours, baseline = (count / seconds / MILLION for seconds in times)
        return BenchRow(TOPIC, what, ours, baseline, "M/s", name, better="more", wanted=wanted)

    times = interleaved(lambda: encode_votes(votes, layout), lambda: pack_12_bits(votes))
    yield row(f"encode, k = {k}", times, len(votes), "12 bits packed in numpy", CODEC_WANTED)
    times = interleaved(lambda: decode_votes(payload, layout, k), lambda: unpack_12_bits(*plain, k))
    yield row(f"decode, k = {k}", times, len(votes), "12 bits packed in numpy", CODEC_WANTED)
    times = interleaved(add, add_in_torch)
    yield row(f"merge, k = {k}", times, len(votes), "torch.index_add_", MERGE_WANTED)
    encoded = body()
    update, count = decode_update(encoded, layout), int(np.count_nonzero(merge_in_torch(all_votes, layout.components)))
    sums = merge_in_torch(all_votes, layout.components).tobytes()
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    packed, name = compressor.compress(sums), "zstandard of the sums as int16"
    times = interleaved(lambda: encode_update(update, layout), lambda: compressor.compress(sums))
    yield row(f"encode an update of {NODES}, k = {k}", times, count, name, None)
    times = interleaved(lambda: decode_update(encoded, layout), lambda: decompressor.decompress(packed))
    yield row(f"decode an update of {NODES}, k = {k}", times, count, name, None)


def rows() -> Iterator[BenchRow]:
    with threads(1):
        yield from codec_rows()
