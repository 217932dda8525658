"""A node chooses a device that works, and applies updates on a device that is exact."""

from __future__ import annotations

import pytest
import torch

from thinwire_node.training import device as device_module
from thinwire_node.training.device import choose_apply_device, choose_device
from thinwire_proto.contract import DemoSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.selftest import SelfTest


@pytest.mark.parametrize("wanted", ["cuda:99", "quantum", "meta"])
def test_an_error_names_a_device_that_cannot_be_used(wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"--device {wanted}: cannot be used on this machine"):
        choose_device(wanted)


def test_auto_skips_a_device_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = "mps" if torch.cuda.is_available() else "cuda"  # no machine has both CUDA and MPS
    monkeypatch.setattr(torch.cuda, "is_available", lambda: claimed == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: claimed == "mps")
    device, why = choose_device("auto")
    assert device.type == "cpu"
    assert f"{claimed} does not work here" in why


def test_updates_are_applied_on_the_cpu_if_the_device_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_cpu(demo: DemoSpec, device: torch.device) -> SelfTest:
        return SelfTest(device.type == "cpu", True, "synthetic")

    monkeypatch.setattr(device_module, "run_selftest", only_the_cpu)
    device, why = choose_apply_device(DemoSpec(), torch.device("meta"))
    assert device.type == "cpu"
    assert "self-test on cpu" in why
    monkeypatch.setattr(device_module, "run_selftest", lambda *_: SelfTest(False, True, "all wrong"))
    with pytest.raises(ConfigError, match="does not decode exactly"):
        choose_apply_device(DemoSpec(), torch.device("cpu"))
