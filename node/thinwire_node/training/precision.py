"""Chooses the precision of a device's computations. The parameters are float32 on every device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def compute_dtype(device: torch.device) -> torch.dtype:
    """The dtype of the forward and backward passes on a device."""
    if device.type != "cuda":
        return torch.float32
    with torch.cuda.device(device):
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
    return choose_dtype(device.type, has_bfloat16=is_native)


def choose_dtype(device_type: str, *, has_bfloat16: bool) -> torch.dtype:
    """bfloat16 on a CUDA or ROCm card that supports it in hardware, float32 on other devices. Older cards emulate
    bfloat16, which is slower than float32."""
    return torch.bfloat16 if device_type == "cuda" and has_bfloat16 else torch.float32


@contextmanager
def full_float32() -> Iterator[None]:
    """Compute float32 products with all their digits. By default, convolutions on CUDA use TF32, which has ten bits."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
