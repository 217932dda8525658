"""Files of tensors have the bytes that the library would write, and are read without mapping them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from thinwire_proto.exact import tensor_files
from thinwire_proto.exact.tensor_files import read_about, read_tensors, save_tensors

TENSORS = {
    "z": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a": torch.linspace(-1, 1, 5),
    "ä": torch.tensor(3.5),
    "none": torch.zeros(0, 4),
}


def test_the_bytes_are_those_of_the_library(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "library", metadata={"format": "pt"})
    save_tensors(TENSORS, tmp_path / "ours", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "library").read_bytes()


@pytest.mark.parametrize("dtype", tensor_files.DTYPES)
def test_every_type_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"one": torch.tensor([[0, 1], [2, 3]]).to(dtype), "numbers": torch.arange(3), "step": torch.zeros(1)}
    save_tensors(tensors, tmp_path / "f", {"step": "7"})
    for found in (read_tensors(tmp_path / "f"), load_file(tmp_path / "f")):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
        assert all(found[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert read_about(tmp_path / "f") == {"step": "7"}


@pytest.mark.parametrize("kept", [3, 20, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    save_tensors(TENSORS, tmp_path / "f", {})
    (tmp_path / "f").write_bytes((tmp_path / "f").read_bytes()[:kept])
    with pytest.raises(SafetensorError):
        read_tensors(tmp_path / "f")
