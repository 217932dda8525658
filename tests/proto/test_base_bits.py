"""A frozen base in 8 and 4 bits: its values, its gradients, and how it is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from support.adapters import CONFIG, base_folder, made
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.frozen_base import dtype_of, load_base, load_whole_base
from thinwire_proto.models.quantized import BLOCK, NF4, QuantizedLinear
from thinwire_proto.models.transformers_models import canonical_config
from thinwire_proto.stateless import Stateless

CONFIG_TEXT = canonical_config(CONFIG, "config")


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_of(matrix: Tensor, bits: int) -> QuantizedLinear:
    layer = QuantizedLinear(nn.Linear(matrix.shape[1], matrix.shape[0]), bits)
    layer.take(matrix)
    return layer


def nearest(matrix: Tensor, bits: int) -> Tensor:
    """The values by the definition, one parameter after the other."""
    found = []
    values = matrix.flatten().tolist()
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        largest = max(abs(value) for value in block)
        scale = float(torch.tensor(largest / 127 if bits == 8 else largest).bfloat16())
        levels = [float(level) for level in range(-127, 128)] if bits == 8 else NF4
        found += [min((level * scale for level in levels), key=lambda one: abs(one - value)) for value in block]
    return torch.tensor(found).view(matrix.shape)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(4, 64), (5, 13), (1, 1)])
def test_each_parameter_gets_the_nearest_value(bits: int, shape: tuple[int, int]) -> None:
    matrix = drawn(*shape)
    matrix[0, 0] = 0
    ours = layer_of(matrix, bits).decoded(torch.float32)
    torch.testing.assert_close(ours, nearest(matrix, bits), rtol=1e-6, atol=0)
    assert not layer_of(torch.zeros(shape), bits).decoded(torch.bfloat16).any()


@pytest.mark.parametrize(("bits", "error", "a_parameter"), [(8, 0.008, 8.25), (4, 0.1, 4.25)])
def test_what_a_parameter_takes_and_loses(bits: int, error: float, a_parameter: float) -> None:
    matrix = drawn(128, 256)
    layer = layer_of(matrix, bits)
    assert (layer.decoded(torch.float32) - matrix).norm() < error * matrix.norm()
    assert 8 * (layer.codes.nbytes + layer.scales.nbytes) == a_parameter * matrix.numel()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_are_those_of_the_decoded_matrix_which_is_not_kept(bits: int, autocast: bool) -> None:
    layer = layer_of(drawn(48, 64), bits)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    values = drawn(6, 64, seed=2).requires_grad_()
    dtype = torch.bfloat16 if autocast else torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found = layer(values)
        plain = F.linear(values.detach().to(dtype), layer.decoded(dtype)) + layer.bias.to(dtype)
    assert found.dtype == dtype
    assert torch.equal(found, plain)
    assert kept == []
    (gradient,) = torch.autograd.grad(found.square().sum(), [values]) if not autocast else (None,)
    if gradient is not None:
        torch.testing.assert_close(gradient, 2 * plain.detach() @ layer.decoded(torch.float32))


def tensors_of(base: nn.Module) -> dict[str, Tensor]:
    return dict(base.named_parameters()) | dict(base.named_buffers())


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_tensor_by_tensor_is_the_same_as_at_once(bits: int, tied: bool, tmp_path: Path) -> None:
    config = CONFIG | {"tie_word_embeddings": tied, "attention_bias": True}
    base, text = base_folder(tmp_path / "base", parts=3, config=config), canonical_config(config, "config")
    paths = sorted(base.glob("*.safetensors"))
    ours = load_base(paths, text, bits, "cpu")
    whole = load_whole_base(paths, text, dtype_of(bits))
    assert not any(tensor.is_meta for tensor in tensors_of(ours).values())
    if bits >= 16:
        theirs = tensors_of(whole)
        assert tensors_of(ours).keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in tensors_of(ours).items())
        return
    exact = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    quantized = {name: layer for name, layer in ours.named_modules() if isinstance(layer, QuantizedLinear)}
    assert len(quantized) == 2 * 7
    for name, layer in quantized.items():
        expected = layer_of(exact[f"{name}.weight"], bits)
        assert torch.equal(layer.codes, expected.codes)
        assert torch.equal(layer.scales, expected.scales)
    assert ours.get_output_embeddings().weight.dtype == torch.bfloat16  # type: ignore[operator]


def test_a_base_whose_files_have_tied_tensors_twice_is_read_by_transformers(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    twice = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(twice, base / "model.safetensors", {"format": "pt"})
    found = load_base([base / "model.safetensors"], CONFIG_TEXT, 4, "cpu")
    layer = next(layer for layer in found.modules() if isinstance(layer, QuantizedLinear))
    expected = layer_of(tensors["model.layers.0.self_attn.q_proj.weight"].bfloat16(), 4)
    assert torch.equal(layer.codes, expected.codes)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(65)
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.norm\.weight: has shape \(65,\); the model of this run has \(64,\)"):
        load_base([base / "model.safetensors"], CONFIG_TEXT, 4, "cpu")


def test_an_adapter_on_fewer_bits_learns_about_the_same(tmp_path: Path) -> None:
    task, contract, blobs = made(base_folder(tmp_path / "base", scale=1), tmp_path / "blobs")
    assert task.base_bits == (32, 16, 8, 4)
    parameters = {name: tensor.requires_grad_() for name, tensor in task.initial_state(1).items()}
    tokens = torch.randint(0, 96, (2, contract.model.context + 1), generator=torch.Generator().manual_seed(1))
    losses, gradients = {}, {}
    for bits in task.base_bits:
        loss = Stateless(task.in_bits(bits).model("cpu", blobs)).loss(parameters, (tokens,))
        losses[bits] = float(loss.detach())
        found = torch.autograd.grad(loss, list(parameters.values()))
        gradients[bits] = torch.cat([gradient.flatten() for gradient in found])
    alike = {bits: float(F.cosine_similarity(found, gradients[32], dim=0)) for bits, found in gradients.items()}
    assert alike[16] > alike[8] > 0.999
    assert alike[8] > alike[4] > 0.95
    assert all(abs(loss - losses[32]) < 1e-3 * losses[32] for loss in losses.values())


LARGE: dict[str, Any] = CONFIG | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6}
LOAD = """
import sys
from pathlib import Path
import torch
from bench.speed.peaks import status_bytes
from thinwire_proto.models.frozen_base import load_base

torch.set_num_threads(1)
small, large, bits = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for folder in (small, large):  # the first loads the libraries
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    base = load_base([folder / "model.safetensors"], (folder / "canonical.json").read_text(), bits, "cpu")
print(status_bytes("VmHWM") - before, sum(one.nbytes for one in (*base.parameters(), *base.buffers())))
"""
"""Loads a base, and prints by how many bytes the process has grown at most, and how many the base has."""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_the_peak_of_loading_is_the_base_as_it_will_be_and_a_tensor(tmp_path: Path) -> None:
    for name, config in (("small", CONFIG), ("large", LARGE)):
        folder = base_folder(tmp_path / name, config=config)
        (folder / "canonical.json").write_text(canonical_config(config, "config"))
    files = (tmp_path / "large" / "model.safetensors").stat().st_size
    largest = 4 * LARGE["hidden_size"] * LARGE["intermediate_size"]
    for bits in (16, 4):
        command = [sys.executable, "-c", LOAD, str(tmp_path / "small"), str(tmp_path / "large"), str(bits)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        grown, held = map(int, done.stdout.split())
        assert held < grown < held + 8 * largest, (bits, grown, held)
        assert grown < 0.7 * files
