"""Builds and loads a frozen base of transformers in 32, 16, 8 or 4 bits a parameter.

With 8 and 4 bits, the matrices of linear layers are quantized, but not the output's: it is often the embedding too.
Everything else is bfloat16, as it is with 16 bits. The base is read, quantized and moved to its device tensor by
tensor, so host memory holds one tensor beside what the device has if the device is another, and otherwise the base
as it will be.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra
from thinwire_proto.models.quantized import QuantizedLinear
from thinwire_proto.models.transformers_models import build, load
from thinwire_proto.models.weights_folder import CONFIG, INDEX, WEIGHTS, dtypes, opened

WIDTHS = (32, 16, 8, 4)
QUANTIZED = (8, 4)
MATRIX_DIMENSIONS = 2
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float32, "F32": torch.float32}
"""The dtype that loses nothing, by that of the files. The range of float16 is too small for a backward pass."""
FILE_DTYPES = DTYPES | {"F16": torch.float16}


_HELD: dict[tuple[tuple[Path, ...], str, torch.dtype], WeakValueDictionary[str, nn.Parameter]] = {}
"""The parameters of the whole bases in this process, by files, config and dtype."""
_LOADING = threading.Lock()


def dtype_of(bits: int) -> torch.dtype:
    """The dtype of what is not quantized."""
    return torch.float32 if bits == 32 else torch.bfloat16


def dtype_of_files(paths: Sequence[Path]) -> torch.dtype:
    """The dtype in which a base loses nothing. Raises ConfigError."""
    found = {dtype for path in paths for dtype in dtypes(path).values()}
    for dtype in sorted(found - DTYPES.keys()):
        raise ConfigError(f"the base has a tensor of type {dtype}; take a base in float32, float16 or bfloat16")
    return torch.bfloat16 if found == {"BF16"} else torch.float32


def one_dtype(paths: Sequence[Path]) -> torch.dtype:
    """The dtype of all tensors of a base's files; float32 if they have several."""
    found = {dtype for path in paths for dtype in dtypes(path).values()}
    return FILE_DTYPES[found.pop()] if len(found) == 1 else torch.float32


def empty_base(config: str, bits: int) -> nn.Module:
    """The base on "meta", with the tensors that it has in so many bits. Raises ConfigError."""
    base = build(config, "meta", dtype=dtype_of(bits))
    for name, layer in _matrices(base, bits).items():
        base.set_submodule(name, QuantizedLinear(layer, bits))
    return base


def loading_bytes(base: nn.Module, bits: int) -> int:
    """Host memory while a base is read for another device: a tensor of its files in 32 bits at most, or if it has
    tensors that its files have in parts, such as experts, all of it in 16 bits (or 32)."""
    frozen = [tensor for tensor in base.parameters() if not tensor.requires_grad]
    sizes = [tensor.numel() for tensor in frozen]
    sizes += [layer.in_features * layer.out_features for layer in base.modules() if isinstance(layer, QuantizedLinear)]
    if any(tensor.dim() > MATRIX_DIMENSIONS for tensor in frozen):
        return dtype_of(bits).itemsize * sum(sizes)
    return torch.float32.itemsize * max(sizes, default=0)


def load_base(paths: Sequence[Path], config: str, bits: int, device: torch.device | str) -> nn.Module:
    """The base on a device. paths: its safetensors files, under any names. Raises ConfigError.

    A base whose files name their tensors otherwise than the model does, such as a mixture of experts, is in host memory
    in 16 bits (or 32) before it is quantized.
    """
    dtype_of_files(paths)
    base = _without_values(config, dtype_of(bits))
    owned = {name for name, _ in base.named_parameters()}
    files = {name: path for path in paths for name in dtypes(path)}
    tied = {name for name, _ in base.named_parameters(remove_duplicate=False)} - owned
    if not owned <= files.keys() or tied & files.keys():
        base = load_whole_base(paths, config, dtype_of(bits))
        for name, layer in _matrices(base, bits).items():
            base.set_submodule(name, _taken(layer, bits, layer.weight.detach().to(device)))
        return _placed(base, device)
    matrices = _matrices(base, bits)
    for name, path in files.items():
        if name not in owned:
            continue  # a tensor that follows from the config: the organizer's machine has compared the names
        values = _read(path, name, base.get_parameter(name).shape).to(device)
        owner, _, leaf = name.rpartition(".")
        if owner in matrices and leaf == "weight":
            base.set_submodule(owner, _taken(base.get_submodule(owner), bits, values))
        else:
            setattr(base.get_submodule(owner), leaf, nn.Parameter(values.to(dtype_of(bits), copy=True)))
    base.tie_weights()
    return _placed(base, device)


def load_whole_base(paths: Sequence[Path], config: str, dtype: torch.dtype) -> nn.Module:
    """The base as transformers reads it, in one dtype, on the CPU. Raises ConfigError."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(config, encoding="utf-8")
        names = [WEIGHTS]
        if len(paths) > 1:
            names = [f"model-{number:05}-of-{len(paths):05}.safetensors" for number in range(1, len(paths) + 1)]
            index = {tensor: name for name, path in zip(names, paths, strict=True) for tensor in dtypes(path)}
            (Path(folder) / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}), encoding="utf-8")
        for name, path in zip(names, paths, strict=True):
            (Path(folder) / name).symlink_to(path.resolve())
        return load(Path(folder), config, dtype)


def shared_base(paths: Sequence[Path], config: str, dtype: torch.dtype) -> nn.Module:
    """`load_whole_base`, with the parameters of a model that this process has loaded so before, if it still has it: the
    coordinator measures, audits and writes samples with models of its own. Nobody may change these parameters. Raises
    ConfigError."""
    with _LOADING:
        held = _HELD.setdefault((tuple(paths), config, dtype), WeakValueDictionary())
        base = _with_parameters(dict(held), config, dtype)
        if base is None:
            base = load_whole_base(paths, config, dtype)
            held.update(base.named_parameters())
        return base


def _with_parameters(held: Mapping[str, nn.Parameter], config: str, dtype: torch.dtype) -> nn.Module | None:
    """A base with these parameters; None if some are gone."""
    if not held:
        return None
    base: nn.Module = _without_values(config, dtype)
    for name in [name for name, _ in base.named_parameters()]:
        if name not in held:
            return None
        owner, _, leaf = name.rpartition(".")
        setattr(base.get_submodule(owner), leaf, held[name])
    base.tie_weights()  # type: ignore[operator] # of transformers
    return base


def _without_values(config: str, dtype: torch.dtype) -> Any:
    """The base with its buffers, and parameters on "meta"."""
    with import_extra("accelerate", "lora").init_empty_weights(include_buffers=False):
        base: Any = build(config, "cpu", dtype=dtype)
    base.tie_weights()  # each assignment of a parameter above has made another one
    return base


def _matrices(base: Any, bits: int) -> dict[str, nn.Linear]:
    """The layers that are quantized, by name."""
    if bits not in QUANTIZED:
        return {}
    output = base.get_output_embeddings()
    return {name: layer for name, layer in base.named_modules() if type(layer) is nn.Linear and layer is not output}


def _taken(layer: Any, bits: int, matrix: Tensor) -> QuantizedLinear:
    quantized = QuantizedLinear(layer, bits)
    quantized.take(matrix)
    return quantized


def _placed(base: nn.Module, device: torch.device | str) -> nn.Module:
    """The base with its buffers on the device, where its parameters are."""
    return base.to(device)


def _read(path: Path, name: str, shape: torch.Size) -> Tensor:
    """A tensor of a file, which is opened for it alone: what was read of an open file stays in memory."""
    with opened(path) as file:
        if (found := tuple(file.get_slice(name).get_shape())) != tuple(shape):
            raise ConfigError(f"{path}: {name}: has shape {found}; the model of this run has {tuple(shape)}")
        tensor: Tensor = file.get_tensor(name)
        return tensor
