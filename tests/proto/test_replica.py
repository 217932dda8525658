"""Replicas: an update is applied in exactly two rounded operations, and snapshots keep all bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from support.small import SHAPES, random_replica, random_votes, shapes_contract, small_contract
from thinwire_proto.errors import OtherContract, ReplicaError
from thinwire_proto.exact.apply import SMALLEST_NORMAL, flush_subnormals
from thinwire_proto.exact.replica import Replica, check_snapshot, load_replica
from thinwire_proto.exact.selftest import reference_signs
from thinwire_proto.exact.tensor_files import read_pieces
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, merge

RATE = float(np.float32(3e-3))
DECAY = float(np.float32(1 - 3e-5))


def update_for(replica: Replica, decay: float = 1.0, seed: int = 0) -> Update:
    votes = [(random_votes(replica.layout, 32, seed + n), n + 1) for n in range(3)]
    return Update(replica.step, RATE, decay, merge(votes, replica.layout.components))


@pytest.mark.parametrize("decay", [1.0, DECAY])
def test_applying_an_update_equals_a_numpy_reference(decay: float) -> None:
    """Compares with a simple reference: numpy cuts and joins tiles, decodes in int64 and steps in float32."""
    replica = random_replica(shapes_contract(demo={"magnitude": "sign"}), step=5)
    before = {name: tensor.numpy().copy() for name, tensor in replica.tensors.items()}
    update = update_for(replica, decay)
    dense = np.zeros(replica.layout.components, np.int64)
    assert isinstance(update.merged, Merged)
    dense[update.merged.components] = update.merged.values
    replica.apply(update, b"\1" * 32)
    assert (replica.step, replica.head) == (6, b"\1" * 32)

    matrix_at, vector_at = 0, replica.layout.matrix_components
    for number, shape in enumerate(SHAPES):
        theta = before[f"t{number}"]
        signs = np.zeros(theta.shape, np.float32)
        if len(shape) > 1:
            flat = signs.reshape(shape[0], -1)
            for row in range(0, flat.shape[0], 64):
                for column in range(0, flat.shape[1], 64):
                    tile = dense[matrix_at : matrix_at + 4096].reshape(1, 64, 64)
                    matrix_at += 4096
                    positive, stepped = reference_signs(tile, 5)
                    part = flat[row : row + 64, column : column + 64]
                    part[:] = (np.where(positive[0], 1, -1) * stepped[0])[: part.shape[0], : part.shape[1]]
        else:
            for start in range(0, shape[0], 64):
                row_of_64 = dense[vector_at : vector_at + 64].reshape(1, 64)
                vector_at += 64
                positive, stepped = reference_signs(row_of_64, 5)
                part = signs[start : start + 64]
                part[:] = (np.where(positive[0], 1, -1) * stepped[0])[: len(part)]
        expected = theta * np.float32(decay) - signs * np.float32(RATE)
        assert np.array_equal(replica.tensors[f"t{number}"].numpy(), expected)


def test_subnormals_and_the_negative_zero_become_zero() -> None:
    values = torch.tensor([SMALLEST_NORMAL, -SMALLEST_NORMAL, SMALLEST_NORMAL / 2, -1e-45, -0.0, 0.0])
    flush_subnormals(values)
    assert values[:2].tolist() == [SMALLEST_NORMAL, -SMALLEST_NORMAL]
    assert values[2:].view(torch.int32).tolist() == [0, 0, 0, 0]


def test_what_becomes_subnormal_by_a_step_becomes_zero() -> None:
    replica = random_replica(shapes_contract(demo={"magnitude": "sign"}), step=5)
    for tensor in replica.tensors.values():
        tensor.fill_(1.5 * SMALLEST_NORMAL)
    votes = [(random_votes(replica.layout, 32, 0), 1)]
    replica.apply(Update(5, SMALLEST_NORMAL, 1.0, merge(votes, replica.layout.components)), b"")
    found = {value for tensor in replica.tensors.values() for value in torch.unique(tensor).tolist()}
    assert found == {0.0, 1.5 * SMALLEST_NORMAL, 2.5 * SMALLEST_NORMAL}  # without votes, nothing changes


def test_a_snapshot_is_checked_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire_proto.exact.tensor_files.PIECE_BYTES", 1 << 10)
    replica = random_replica(small_contract(), step=7)
    replica.save(tmp_path / "s.safetensors")
    assert check_snapshot(replica.contract, tmp_path / "s.safetensors") == replica.head
    shapes = {name: tuple(tensor.shape) for name, tensor in replica.tensors.items()}
    pieces = list(read_pieces(tmp_path / "s.safetensors", shapes))
    assert len(pieces) > len(shapes)
    assert {piece.data_ptr() for piece in pieces} == {pieces[0].data_ptr()}
    for wrong in (shapes | {"none": (1,)}, shapes | {next(iter(shapes)): (3, 5)}):
        with pytest.raises(SafetensorError, match="is missing or is not"):
            list(read_pieces(tmp_path / "s.safetensors", wrong))


def test_tensors_of_another_type_or_shape_are_refused() -> None:
    right = random_replica(small_contract()).tensors
    name, tensor = next(iter(right.items()))
    for wrong in ({name: tensor[:1]}, {name: tensor.double()}):
        with pytest.raises(ReplicaError, match="not float32 of"):
            Replica(small_contract(), right | wrong, 0, b"")


def test_a_damaged_or_foreign_snapshot_is_refused(tmp_path: Path) -> None:
    contract = small_contract()
    path = tmp_path / "s.safetensors"
    random_replica(contract).save(path)
    with pytest.raises(OtherContract, match="not a snapshot of this run's contract"):
        load_replica(small_contract(demo={"k": 5}), path)
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:100], b"", whole[:8] + b"\xff" * 50):
        path.write_bytes(data)
        for read in (load_replica, check_snapshot):
            with pytest.raises(ReplicaError, match="cannot be read as a snapshot"):
                read(contract, path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for read in (load_replica, check_snapshot):
        with pytest.raises(ReplicaError, match="do not match the hash"):
            read(contract, path)
    with pytest.raises(ReplicaError, match="cannot be read as a snapshot"):
        load_replica(contract, tmp_path / "none")


@pytest.mark.parametrize(("step", "head"), [(-1, 32), (1 << 63, 32), (0, 30), (0, 0)])
def test_a_snapshot_with_an_impossible_step_or_head_is_refused(tmp_path: Path, step: int, head: int) -> None:
    """A fuzzer's find: such a step does not fit the messages in which the node would send it."""
    replica = random_replica(small_contract())
    replica.step, replica.head = step, bytes(head)
    replica.save(tmp_path / "s.safetensors")
    with pytest.raises(ReplicaError, match="cannot be read as a snapshot"):
        load_replica(replica.contract, tmp_path / "s.safetensors")
