"""Chooses the devices that compute and apply updates, and the precision of passes; measures their memory. The
parameters are float32 on every device."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from thinwire_node.limits.presence import told_by
from thinwire_node.training.cards import CardLocks, cuda_cards
from thinwire_proto.contract import DemoSpec, RuleSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.selftest import run_selftest


def choose_device(wanted: str, locks: CardLocks | None = None) -> tuple[torch.device, str]:
    """Choose the device that computes.

    "auto" tries CUDA (or ROCm), Intel's XPU, Apple's MPS, then the CPU, and takes the first one that passes a test.
    "cuda" and "auto" take the card with the fewest nodes of this machine, by `locks`. "cuda:N" takes card N. Returns
    the device, and a warning or the reason why a faster device was not chosen. Raises ConfigError if a named device
    does not work."""
    if wanted != "auto":
        device, problem = _try_cards(locks) if wanted == "cuda" else _try_device(wanted)
        if device is None:
            raise ConfigError(f"--device {wanted}: cannot be used on this machine ({problem}); try auto or cpu")
        if locks is not None and wanted.startswith("cuda:"):
            locks.take([card for card in cuda_cards() if card.number == device.index])
        return device, problem
    passed_over = []
    found = {"cuda": torch.cuda.is_available(), "xpu": torch.xpu.is_available()}
    for name, is_available in (found | {"mps": torch.backends.mps.is_available()}).items():
        if is_available:
            device, problem = _try_cards(locks) if name == "cuda" else _try_device(name)
            if device is not None:
                return device, problem
            passed_over.append(f"{name} does not work here ({problem})")
    return torch.device("cpu"), "; ".join(passed_over)


def _try_cards(locks: CardLocks | None) -> tuple[torch.device | None, str]:
    """Lock the least shared card that works. Returns it and a warning if it is shared, or None and the problem."""
    problem, cards = "", cuda_cards() if torch.cuda.is_available() else []
    if locks is None or not cards:
        return _try_device("cuda")
    while cards:
        card, warning = locks.take(cards)
        device, problem = _try_device(f"cuda:{card.number}")
        if device is not None:
            return device, warning
        locks.release()
        cards.remove(card)
    return None, problem


def _try_device(name: str) -> tuple[torch.device | None, str]:
    """Test a device with a matrix product. Returns the device with its number, or None and the problem."""
    try:
        device = torch.zeros(1, device=name).device  # "cuda" becomes "cuda:0", the name that tensors have
        product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
        return (device, "") if product.sum().item() == 64**3 else (None, "a matrix product was wrong")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return None, str(error).splitlines()[0]


def choose_apply_device(
    demo: DemoSpec, compute: torch.device, rule: RuleSpec | None = None
) -> tuple[torch.device, str]:
    """Choose the device that applies updates: the compute device if it passes the exactness test, else the CPU.

    Returns the device and the reason. Raises ConfigError if the CPU fails the test as well."""
    cpu = torch.device("cpu")
    for device in dict.fromkeys((compute, cpu)):
        try:
            test = run_selftest(demo, device, rule)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            detail = f"the self-test cannot run there: {str(error).splitlines()[0]}"
        else:
            if test.passed:
                return device, f"self-test on {device}: {test.detail}; it detects a decode in floating point"
            detail = test.detail
        if device == cpu:
            raise ConfigError(f"this machine cannot take part: its CPU does not decode exactly ({detail})")
    raise AssertionError("unreachable: the CPU is always tried")


def memory_bytes(device: str) -> tuple[int | None, int | None]:
    """The memory in use on a device and its total memory. device: `str(torch.device)`.

    For the CPU: the memory of this process and of the machine. None where the system does not tell."""
    if device.startswith("cuda"):
        return torch.cuda.memory_reserved(device), torch.cuda.get_device_properties(device).total_memory
    if device.startswith("xpu"):
        return torch.xpu.memory_reserved(device), torch.xpu.get_device_properties(device).total_memory
    if device.startswith("mps"):
        return torch.mps.driver_allocated_memory(), torch.mps.recommended_max_memory()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, ValueError):  # this system has no /proc
        return None, None


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
    """The card that torch cannot see; None if torch sees one, or if no driver shows one. Takes seconds.

    The guide installs the CPU's build first, which works everywhere and is a tenth of the size. The card is found by
    the program that comes with its driver: without a driver no build of torch can use it."""
    if torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available():
        return None
    if sys.platform == "darwin":
        return _apple()
    if found := NVIDIA_NAME.search(told_by("nvidia-smi", "-L") or ""):
        return UnseenCard(found[1], _for_cuda())
    if found := ROCM_NAME.search(told_by("rocm-smi", "--showproductname") or ""):
        return UnseenCard(found[1].strip(), _install(ROCM))
    found = XPU_NAME.search(told_by("xpu-smi", "discovery") or "")
    return UnseenCard(found[1].strip(), _install(XPU)) if found else None


def _for_cuda() -> str:
    version = CUDA_VERSION.search(told_by("nvidia-smi") or "")
    build = next((build for major, build in CUDA_BY_DRIVER if version and int(version[1]) >= major), None)
    return _install(build) if build else "update its driver to one for CUDA 12 or newer, and start the node again"


def _apple() -> UnseenCard | None:
    if (told_by("sysctl", "-n", "hw.optional.arm64") or "").strip() != "1":
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
