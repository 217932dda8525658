"""Which device computes, and which one applies updates."""

from __future__ import annotations

import torch

from thinwire_proto.errors import ConfigError
from thinwire_proto.selftest import run_selftest


def choose_device(wanted: str) -> torch.device:
    """ "auto" takes CUDA (or ROCm), then Apple's MPS, then the CPU. Raises ConfigError if `wanted` is not there."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {wanted}: cannot be used on this machine ({reason}); try auto or cpu") from None
    return device


def choose_apply_device(transform: str, compute: torch.device) -> tuple[torch.device, str]:
    """The compute device if it decodes and steps exactly, else the CPU; and why, in words. Raises ConfigError if the
    CPU does not either."""
    cpu = torch.device("cpu")
    for device in dict.fromkeys((compute, cpu)):
        try:
            test = run_selftest(transform, device)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            detail = f"the self-test cannot run there: {str(error).splitlines()[0]}"
        else:
            if test.passed:
                return device, f"self-test on {device}: {test.detail}; a decode in float was told apart"
            detail = test.detail
        if device == cpu:
            raise ConfigError(f"this machine's CPU does not decode exactly ({detail}); it cannot take part")
    raise AssertionError("unreachable: the CPU is always tried")
