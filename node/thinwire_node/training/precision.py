"""In which precision a device computes. The parameters stay float32 everywhere."""

from __future__ import annotations

import torch


def compute_dtype(device: torch.device) -> torch.dtype:
    """What forward and backward run in on a device."""
    if device.type != "cuda":
        return torch.float32
    with torch.cuda.device(device):
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
    return choose_dtype(device.type, has_bfloat16=is_native)


def choose_dtype(device_type: str, *, has_bfloat16: bool) -> torch.dtype:
    """bfloat16 on a CUDA or ROCm card with arithmetic for it. Older cards emulate it, slower than float32. Other
    devices take float32."""
    return torch.bfloat16 if device_type == "cuda" and has_bfloat16 else torch.float32
