"""A compiled model computes the gradients of the plain one, and a machine without a compiler trains all the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.small import small_contract
from thinwire_node.training.compute import TorchCompute, set_up_compiler
from thinwire_node.training.failures import Interrupted
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_proto.activations import sample_of
from thinwire_proto.task import Batch, task_of

WITHOUT = """
import sys
from pathlib import Path
import torch
from support.small import small_contract
from thinwire_node.training.compute import set_up_compiler
from thinwire_node.training.compute import TorchCompute
from thinwire_proto.activations import sample_of
from thinwire_proto.task import task_of

set_up_compiler(Path(sys.argv[1]))
spec = small_contract().model
task = task_of(spec)
compute, state = TorchCompute(task, torch.device("cpu"), compiles=True), task.initial_state(1)
print(compute.compile(state, sample_of(spec)))
print(compute.gradients(sample_of(spec))[0].item())
"""
CPU = torch.device("cpu")
TESTS = Path(__file__).parents[1]
SPEC = small_contract().model
TASK = task_of(SPEC)

pytestmark = [
    pytest.mark.timeout(600),  # the compiler takes minutes on a busy machine
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # the compiler's own
]


@pytest.fixture(scope="module", autouse=True)
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("node")
    set_up_compiler(folder)
    yield folder / "compiled"
    torch._dynamo.reset()


def batch_of(samples: int) -> Batch:
    return (torch.randint(0, 256, (samples, SPEC.context + 1), generator=torch.Generator().manual_seed(samples)),)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_compiled_stages_give_the_gradients_of_plain_ones_for_any_number_of_samples(
    compiler: Path, checkpoints: bool
) -> None:
    state = TASK.initial_state(1)
    plain, compiled = (
        TorchCompute(TASK, CPU, micro_batch=MicroBatch(8, checkpoints=checkpoints), compiles=compiles)
        for compiles in (False, True)
    )
    assert compiled.compile(state, sample_of(SPEC)) is None
    made = {*compiler.rglob("*.so")}
    assert made
    plain.use(state)
    compiled.use(state)
    for samples in (4, 1, 3, 2, 8):
        (expected, found) = (one.gradients(batch_of(samples)) for one in (plain, compiled))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert {*compiler.rglob("*.so")} == made
    assert compiled.loss(state, batch_of(5)) == plain.loss(state, batch_of(5))
    compiled.interrupt()
    with pytest.raises(Interrupted):
        compiled.gradients(batch_of(2))


def test_a_machine_without_a_compiler_trains_without(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)],
        env={"PATH": "/nowhere", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reason, loss = done.stdout.strip().splitlines()
    assert "No working C++ compiler found" in reason
    plain = TorchCompute(TASK, CPU)
    plain.use(TASK.initial_state(1))
    assert float(loss) == pytest.approx(plain.gradients(sample_of(SPEC))[0].item())
