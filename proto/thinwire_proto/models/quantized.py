"""Frozen matrices in 8 or 4 bits a parameter, which a layer decodes whenever it computes.

A matrix is kept as codes in blocks of BLOCK parameters, with a scale for each block. With 4 bits a code is one of the
16 levels of NF4 (QLoRA, arXiv 2305.14314), with 8 bits an integer. A decoded value is level times scale, rounded once,
so it has the same bits on every device; the kernels of bitsandbytes and torchao promise no such thing. The gradient of
a layer's input needs the matrix a second time: it is decoded again, since keeping it would take what 4 bits save.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 64
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of a normal distribution (arXiv 2305.14314, appendix E)."""
INT8_MAX = 127
ENCODED_AT_ONCE = 1 << 20
"""Parameters; each takes about 20 bytes while it is encoded."""


def _pairs_of(values: torch.dtype, pairs: torch.dtype) -> Tensor:
    """The two values that each byte stands for, as one integer [256]: reading one is faster than reading two."""
    levels = torch.tensor(NF4, dtype=values)
    return torch.cartesian_prod(levels, levels).view(pairs).view(-1)


PAIRS = {
    torch.bfloat16: _pairs_of(torch.bfloat16, torch.int32),
    torch.float16: _pairs_of(torch.float16, torch.int32),
    torch.float32: _pairs_of(torch.float32, torch.int64),
}
"""By the dtype of the values; on the CPU."""


class QuantizedLinear(nn.Linear):
    """A frozen linear layer with a matrix of 8 or 4 bits a parameter. Its values are arbitrary until `take`.

    codes: int8 [n] or uint8 [n / 2], where n is the parameters in whole blocks; of two parameters in a byte, the first
    has the upper half. scales: bfloat16 [n / BLOCK].
    """

    def __init__(self, plain: nn.Linear, bits: int) -> None:
        """plain: a layer of the same shape, which may be without memory. Its bias is used."""
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bits = plain.in_features, plain.out_features, bits
        self.register_parameter("bias", plain.bias)
        blocks, device = -(-plain.weight.numel() // BLOCK), plain.weight.device
        codes = torch.empty(blocks * BLOCK * bits // 8, dtype=torch.int8 if bits == 8 else torch.uint8, device=device)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", torch.empty(blocks, dtype=torch.bfloat16, device=device), persistent=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The codes, of which peft reads the device."""
        return self.codes

    def take(self, matrix: Tensor) -> None:
        """Encode a matrix [out_features, in_features] of any floating-point type, and keep it on its device."""
        self.codes, self.scales = encode(matrix, self.bits)

    def decoded(self, dtype: torch.dtype) -> Tensor:
        """The matrix [out_features, in_features]."""
        if self.bits == 8:
            values = self.codes.to(dtype)
        else:
            pairs = _pairs(dtype, self.codes.device)
            values = pairs.index_select(0, self.codes.int()).view(dtype)
        values = values.view(-1, BLOCK).mul_(self.scales.to(dtype)[:, None]).view(-1)
        return values[: self.out_features * self.in_features].view(self.out_features, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        kind, values = input.device.type, input
        if torch.is_autocast_enabled(kind):
            values = values.to(torch.get_autocast_dtype(kind))
        found: Tensor = _Product.apply(values, self)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias.to(found.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bits={self.bits}"


def decoding_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """The memory of the largest quantized matrix of a model while a layer computes with it in a dtype."""
    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedLinear)]
    widths = {8: dtype.itemsize, 4: dtype.itemsize + torch.int32.itemsize // 2}  # an index for two parameters
    return max((layer.in_features * layer.out_features * widths[layer.bits] for layer in layers), default=0)


class _Product(torch.autograd.Function):
    """The product of values [..., in_features] and a layer's matrix."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(values, layer.decoded(values.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.decoded(gradient.dtype), None


@torch.no_grad()
def encode(matrix: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The codes and scales of a matrix, as `QuantizedLinear` has them, on the matrix's device.

    A parameter gets the nearest level. Zeros fill up the last block.
    """
    parts = [_encode(part, bits) for part in torch.split(matrix.reshape(-1), ENCODED_AT_ONCE)]
    return torch.cat([codes for codes, _ in parts]), torch.cat([scales for _, scales in parts])


def _encode(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    blocks = F.pad(values.float(), (0, -len(values) % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(1, keepdim=True)
    scales = (largest / INT8_MAX if bits == 8 else largest).bfloat16()
    shares = (blocks / scales.float().masked_fill_(scales == 0, 1)).view(-1)
    if bits == 8:
        return shares.round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scales.view(-1)
    levels = torch.tensor(NF4, device=values.device)
    codes = torch.bucketize(shares, (levels[1:] + levels[:-1]) / 2, out_int32=True).to(torch.uint8)
    return codes[::2] << 4 | codes[1::2], scales.view(-1)


def _pairs(dtype: torch.dtype, device: torch.device) -> Tensor:
    return PAIRS[dtype] if device.type == "cpu" else _pairs_on(dtype, device)  # a traced pass must not fill a cache


@lru_cache(maxsize=16)
def _pairs_on(dtype: torch.dtype, device: torch.device) -> Tensor:
    return PAIRS[dtype].to(device)
