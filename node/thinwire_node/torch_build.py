"""Says which build of torch a machine wants, if it has a card that the installed torch cannot see.

The guide installs the CPU's build first, because it works everywhere and is a tenth of the size. The card is found by
the program that comes with its driver, and not by its PCI number: without a driver no build of torch can use it.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass

import torch

from thinwire_proto.limits import DRIVER_ANSWER_S

INDEX = "https://download.pytorch.org/whl"
ROCM, XPU = "rocm6.4", "xpu"
"""Folders of INDEX with a build of torch 2.9 or newer (https://pytorch.org/get-started/previous-versions). Newer cards
may want a newer one."""
CUDA_BY_DRIVER = ((13, "cu130"), (12, "cu126"))
"""The build of torch, by the newest major version of CUDA that the driver can run."""
REQUIREMENT = "torch>=2.9"
CUDA_VERSION = re.compile(r"CUDA Version: (\d+)\.")
NVIDIA_NAME = re.compile(r"^GPU \d+: (.+?) \(UUID", re.MULTILINE)
ROCM_NAME = re.compile(r"Card [Ss]eries:\s*(.+)")
XPU_NAME = re.compile(r"Device Name: (.+?)\s*\|?$", re.MULTILINE)


@dataclass(frozen=True)
class UnseenCard:
    """A card that torch cannot see. remedy: a command, or what to do in words."""

    name: str
    remedy: str

    def __str__(self) -> str:
        return f"this machine has {self.name}, which the installed torch {torch.__version__} cannot see; {self.remedy}"


def unseen_card() -> UnseenCard | None:
    """The card that torch cannot see; None if torch sees one, or if no driver shows one. Takes seconds."""
    if torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available():
        return None
    if sys.platform == "darwin":
        return _apple()
    if found := NVIDIA_NAME.search(_said("nvidia-smi", "-L")):
        return UnseenCard(found[1], _for_cuda())
    if found := ROCM_NAME.search(_said("rocm-smi", "--showproductname")):
        return UnseenCard(found[1].strip(), _install(ROCM))
    found = XPU_NAME.search(_said("xpu-smi", "discovery"))
    return UnseenCard(found[1].strip(), _install(XPU)) if found else None


def _for_cuda() -> str:
    version = CUDA_VERSION.search(_said("nvidia-smi"))
    build = next((build for major, build in CUDA_BY_DRIVER if version and int(version[1]) >= major), None)
    return _install(build) if build else "update its driver to one for CUDA 12 or newer, and start the node again"


def _apple() -> UnseenCard | None:
    if _said("sysctl", "-n", "hw.optional.arm64").strip() != "1":
        return None
    return UnseenCard("Apple silicon", "use a Python for arm64 (not Rosetta's) on macOS 14 or newer, and install again")


def _install(build: str) -> str:
    """The command that replaces the torch of this environment."""
    what = [REQUIREMENT, "--index-url", f"{INDEX}/{build}"]
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install", "--force-reinstall", *what]
    else:  # environments of uv have no pip
        command = ["uv", "pip", "install", "--python", sys.executable, "--reinstall-package", "torch", *what]
    return f"to use it, run: {shlex.join(command)}"


def _said(*command: str) -> str:
    """The output of a program; empty if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=DRIVER_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
