"""Writes and reads safetensors files tensor by tensor, so that neither takes a second copy of a model in memory.

The library maps a file to read it. The pages that were read count as memory of the process, and reading a mapped file
that was truncated kills it. So the library checks the header only, and the tensors are read into their own memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

PIECE_BYTES = 1 << 24
"""Bytes of a tensor that leave a device at a time."""
HEAD_BYTES = 8
"""The length of the header, at the start of the file; the header's own length is a multiple of it."""
ABOUT = "__metadata__"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
OF_NAME = {name: dtype for dtype, name in DTYPES.items()}


def save_tensors(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str]) -> None:
    """Write a safetensors file with `about` as metadata. The caller syncs and renames it. Raises OSError.

    The tensors must not change meanwhile.
    """
    names, head = head_of(tensors, about)
    try:
        with path.open("wb") as file:
            file.write(head)
            for name in names:
                _write(file, tensors[name])
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from None


def head_of(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> tuple[list[str], bytes]:
    """The order in which a file has the tensors, and the bytes before them."""
    # the widest first, which keeps each aligned, and in the order of the names, as the library does
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {ABOUT: dict(about)}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % HEAD_BYTES)
    return names, len(text).to_bytes(HEAD_BYTES, "little") + text


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file onto the CPU. Raises SafetensorError or OSError."""
    read_about(path)  # the library checks the header, and that the file is as long as it says
    found = {}
    with path.open("rb") as file:
        entries, start = read_head(file)
        for name, entry in entries.items():
            if entry["dtype"] not in OF_NAME:
                raise SafetensorError(f"{path}: {name}: {entry['dtype']} is not known")
            found[name] = torch.empty(entry["shape"], dtype=OF_NAME[entry["dtype"]])
            file.seek(start + entry["data_offsets"][0])
            _read(file, found[name], f"{path}: {name}")
    return found


def read_pieces(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Tensor]:
    """The values of float32 tensors of a safetensors file, in the order of `shapes`, in flat pieces that share their
    memory. Raises SafetensorError, also if a tensor is missing or has another shape, or OSError."""
    read_about(path)
    with path.open("rb") as file:
        entries, start = read_head(file)
        passing = torch.empty(PIECE_BYTES // 4)
        for name, shape in shapes.items():
            entry = entries.get(name)
            if entry is None or (entry["dtype"], tuple(entry["shape"])) != (DTYPES[torch.float32], shape):
                raise SafetensorError(f"{path}: parameter {name} is missing or is not float32 of shape {shape}")
            first, end = entry["data_offsets"]
            file.seek(start + first)
            for offset in range(first, end, PIECE_BYTES):
                piece = passing[: min(PIECE_BYTES, end - offset) // 4]
                _read(file, piece, f"{path}: {name}")
                yield piece


def read_head(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The entries of a file's header, by the names of the tensors, and where their bytes begin."""
    header_bytes = int.from_bytes(file.read(HEAD_BYTES), "little")
    entries: dict[str, Any] = json.loads(file.read(header_bytes))
    entries.pop(ABOUT, None)
    return entries, HEAD_BYTES + header_bytes


def read_about(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file. Raises SafetensorError or OSError."""
    with path.open("rb"), safe_open(path, framework="pt") as file:  # the library's OSError has no number and no path
        return file.metadata() or {}


def _write(file: BinaryIO, tensor: Tensor) -> None:
    flat, each = tensor.detach().reshape(-1), PIECE_BYTES // tensor.element_size()
    for piece in torch.split(flat, each) if tensor.device.type != "cpu" else (flat,):
        if len(piece):
            file.write(bytes_of(piece.cpu()))


def _read(file: BufferedReader, tensor: Tensor, name: str) -> None:
    """Read a whole tensor. Raises SafetensorError, which begins with `name`, at the end of the file."""
    if tensor.numel() and file.readinto(bytes_of(tensor.view(-1))) < tensor.numel() * tensor.element_size():
        raise SafetensorError(f"{name}: the file ends before the tensor")


def bytes_of(flat: Tensor) -> memoryview:
    """The bytes of a contiguous tensor of one dimension on the CPU, not copied."""
    return flat.view(torch.uint8).numpy().data
