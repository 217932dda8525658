"""Chooses the precision of a device's computations. The parameters are float32 on every device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

TENSOR_CORES = (7, 0)
"""The CUDA capability from which on products in float16 are faster than in float32."""
SCALE = 2.0**15
GROWS_AFTER = 500


def compute_dtype(device: torch.device) -> torch.dtype:
    """The dtype of the forward and backward passes on a device."""
    if device.type == "xpu":
        return choose_dtype(has_bfloat16=torch.xpu.is_bf16_supported(), has_float16=False)
    if device.type != "cuda":
        return torch.float32
    with torch.cuda.device(device):
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
    has_float16 = torch.version.hip is None and torch.cuda.get_device_capability(device) >= TENSOR_CORES
    return choose_dtype(has_bfloat16=is_native, has_float16=has_float16)


def choose_dtype(*, has_bfloat16: bool, has_float16: bool) -> torch.dtype:
    """bfloat16 where the hardware has it, since older cards emulate it, more slowly than float32; then float16, where
    that is fast; else float32."""
    if has_bfloat16:
        return torch.bfloat16
    return torch.float16 if has_float16 else torch.float32


class LossScale:
    """The factor of a loss whose gradient is computed in float16, so that small gradients are not rounded to 0 (arXiv
    1710.03740). value: a power of two; always 1 for other dtypes."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.value = SCALE if dtype == torch.float16 else 1.0
        self._max = self.value
        self._fitted = 0

    def too_large(self) -> bool:
        """A gradient was not finite. Returns whether a smaller value may do, which the scale then has."""
        self._fitted = 0
        if self.value == 1:
            return False
        self.value = max(1.0, self.value / 4)
        return True

    def fitted(self) -> None:
        """A gradient was finite."""
        self._fitted += 1
        if self._fitted >= GROWS_AFTER:
            self._fitted, self.value = 0, min(self._max, 2 * self.value)


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
