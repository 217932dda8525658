"""A node chooses a device that works and a card of its own, and computes in 16 bits only where that is fast."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.small import random_replica, small_contract
from thinwire_node.training import device as device_module
from thinwire_node.training.cards import Card, CardLocks, choose_card
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.device import LossScale, choose_apply_device, choose_device, choose_dtype, compute_dtype
from thinwire_proto.contract import DemoSpec, RuleSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.selftest import SelfTest
from thinwire_proto.task import task_of

CARDS = [Card(0, "GPU-a"), Card(1, "GPU-b")]
NODE = """
import sys
from pathlib import Path
from thinwire_node.training.cards import Card, CardLocks
locks = CardLocks(Path(sys.argv[1]))
print(locks.take([Card(0, "GPU-a"), Card(1, "GPU-b")])[0].number, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("nodes", "number", "is_shared"),
    [
        ({}, 0, False),
        ({"GPU-a": 1}, 1, False),
        ({"GPU-b": 1}, 0, False),
        ({"GPU-a": 2, "GPU-b": 1}, 1, True),
        ({"GPU-a": 1, "GPU-b": 1}, 0, True),
        ({"GPU-of-another-user": 5}, 0, False),
    ],
)
def test_a_node_takes_the_card_with_the_fewest_nodes(nodes: dict[str, int], number: int, is_shared: bool) -> None:
    card, warning = choose_card(CARDS, nodes)
    assert card.number == number
    assert ("shared" in warning) == is_shared


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_processes_take_different_cards_and_a_dead_one_frees_its_own(
    tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    def start() -> int:
        command = [sys.executable, "-c", NODE, str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    assert [start(), start()] == [0, 1]
    locks = CardLocks(tmp_path)
    assert "shared with 1 other" in locks.take(CARDS)[1]
    locks.release()
    processes[1].kill()
    processes[1].wait()
    assert locks.take(CARDS) == (CARDS[1], "")
    locks.release()


@pytest.mark.parametrize(
    ("has_bfloat16", "has_float16", "dtype"),
    [(True, True, torch.bfloat16), (False, True, torch.float16), (False, False, torch.float32)],
)
def test_a_card_computes_in_what_it_has_natively(has_bfloat16: bool, has_float16: bool, dtype: torch.dtype) -> None:
    assert choose_dtype(has_bfloat16=has_bfloat16, has_float16=has_float16) == dtype
    assert compute_dtype(torch.device("cpu")) == torch.float32


def test_float16_with_a_scaled_loss_keeps_small_gradients_and_lowers_a_scale_that_is_too_large() -> None:
    """On the CPU, in the way of a card."""
    contract = small_contract()
    exact, scaled, unscaled = (TorchCompute(task_of(contract.model), torch.device("cpu")) for _ in range(3))
    parameters = {name: tensor * 1e-2 for name, tensor in random_replica(contract).tensors.items()}
    batch = (torch.arange(2 * 33).view(2, 33),)
    for compute in (exact, scaled, unscaled):
        compute._received = None
        compute.use(parameters)
    for compute in (scaled, unscaled):
        compute._dtype = torch.float16
    scaled._scale = LossScale(torch.float16)
    scaled._scale.value = 2.0**40
    expected, close, far = (compute.gradients(batch)[1] for compute in (exact, scaled, unscaled))
    assert 1 < scaled._scale.value < 2.0**40
    errors = [
        sum(float((found[name] - gradient).norm()) for name, gradient in expected.items()) for found in (close, far)
    ]
    assert 2 * errors[0] < errors[1]


def test_auto_skips_a_device_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = "mps" if torch.cuda.is_available() else "cuda"  # no machine has both CUDA and MPS
    monkeypatch.setattr(torch.cuda, "is_available", lambda: claimed == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: claimed == "mps")
    device, why = choose_device("auto")
    assert device.type == "cpu"
    assert f"{claimed} does not work here" in why


def test_updates_are_applied_on_the_cpu_if_the_device_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_cpu(demo: DemoSpec, device: torch.device, rule: RuleSpec | None) -> SelfTest:
        return SelfTest(device.type == "cpu", True, "synthetic")

    monkeypatch.setattr(device_module, "run_selftest", only_the_cpu)
    device, why = choose_apply_device(DemoSpec(), torch.device("meta"))
    assert device.type == "cpu"
    assert "self-test on cpu" in why
    monkeypatch.setattr(device_module, "run_selftest", lambda *_: SelfTest(False, True, "all wrong"))
    with pytest.raises(ConfigError, match="does not decode exactly"):
        choose_apply_device(DemoSpec(), torch.device("cpu"))
