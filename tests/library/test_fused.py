"""The fused kernel gives the same result as the compressor in torch, and is not used where it does not.

On a machine without a card the kernel runs in Triton's interpreter: the same code, in numpy.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.small import SHAPES, random_replica, shapes_contract, small_contract, small_corpus
from thinwire.compression import fused, trial
from thinwire.compression.compress import Compressor, Extracted
from thinwire.compression.fused import TrialEndedError, make_fused, tried, verdict_of
from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent
from thinwire.compression.trial import decide, disagreement, hard_tiles
from thinwire_node.kinds import PartSettings
from thinwire_node.machine import RealMachine
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.star import part as star_part
from thinwire_node.star.part import StarPart
from thinwire_proto.contract import DemoSpec, Parameter
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.tiles import TileLayout

pytest.importorskip("triton", reason="Triton is for Linux on x86-64")
from thinwire.compression.triton.compress import ANYWHERE, FusedCompressor, GradientInput

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
LAYOUT = TileLayout(shapes_contract().parameters)


def spec_of(**fields: object) -> DemoSpec:
    return DemoSpec.model_validate({"precondition": "none", "magnitude": "clipped"} | fields)


def fused_for(spec: DemoSpec) -> FusedCompressor:
    return FusedCompressor(spec, DEVICE, ANYWHERE)


def gradients_of(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{n}": torch.randn(shape, generator=generator).to(DEVICE) for n, shape in enumerate(SHAPES)}


def assert_same_extraction(coefficients: Tensor, k: int, spec: DemoSpec) -> None:
    """Identical coefficients give the same components, the same values and the same remaining momentum."""
    here, there = coefficients.clone(), coefficients.to(DEVICE, copy=True)
    plain = Compressor(spec, "cpu").extract(here, k)
    kernel = fused_for(spec).extract(there, k)
    assert torch.equal(kernel.components.cpu(), plain.components)
    torch.testing.assert_close(kernel.values.cpu(), plain.values, rtol=1e-5, atol=0)
    assert torch.equal(kernel.codes.cpu(), plain.codes)
    scale = coefficients.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(there.cpu() / scale, here / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("k", [1, 3, 176, 4095, 4096])
@pytest.mark.parametrize("fields", [{}, {"magnitude": "tile"}])
def test_kernel_selects_as_torch(k: int, fields: dict[str, object]) -> None:
    """With tiles that are hard to select from; see `hard_tiles`."""
    assert_same_extraction(hard_tiles(), k, spec_of(**fields))


@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 4096))
@settings(max_examples=25, deadline=None)
def test_ties_go_to_the_lowest_positions(seed: int, largest: int, k: int) -> None:
    """There are few different magnitudes, so nearly every k has ties at the boundary."""
    coefficients = torch.randint(-largest, largest + 1, (1, 64, 64), generator=torch.Generator().manual_seed(seed))
    assert_same_extraction(coefficients.to(torch.float32), k, spec_of())


def test_extreme_float32_numbers() -> None:
    """Subnormal numbers, very large ones, and negative zero."""
    tiles = torch.zeros(2, 64, 64)
    tiles[0, 0, :4] = torch.tensor([1e-44, -3e-45, 1e-40, -0.0])
    tiles[1, 5, :3] = torch.tensor([1e38, -1e38, 1e-3])
    for k, expected in ((1, [2, 4096 + 5 * 64]), (8, [0, 1, 2, *(4096 + 5 * 64 + n for n in range(3))])):
        components = fused_for(spec_of()).extract(tiles.to(DEVICE, copy=True), k).components.tolist()
        # a card may treat subnormal numbers as zeros
        assert [c for c in components if c >= 4096] == [c for c in expected if c >= 4096]
        assert set(components) <= set(expected)


def test_nan_spoils_only_its_own_tile() -> None:
    """Callers drop gradients that are not finite. If one got through, it would spoil only its own tile."""
    tiles = torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(1))
    tiles[1, 7, 9:12] = torch.tensor([torch.inf, torch.nan, -torch.inf])
    tiles[1, 8, :5] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    extracted = fused_for(spec_of()).extract(tiles.to(DEVICE, copy=True), 4)
    plain = Compressor(spec_of(), "cpu").extract(tiles[::2].clone(), 4)
    others = (extracted.components < 4096) | (extracted.components >= 8192)
    assert (extracted.components[others].cpu() % 4096).tolist() == (plain.components % 4096).tolist()
    torch.testing.assert_close(extracted.values[others].cpu(), plain.values, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("precondition", "magnitude"), [("adam", "clipped"), ("none", "sign"), ("adam", "tile")])
def test_momentum_is_the_same_with_and_without_the_kernel(precondition: str, magnitude: str) -> None:
    """Several rounds with padded shapes, matrices through the kernel and vectors through torch.

    The sent part and the remainder must be equal. Each round has new gradient tensors, except the last, which reuses
    them.
    """
    spec = spec_of(precondition=precondition, magnitude=magnitude, beta=0.9)
    plain, kernel = Momentum(LAYOUT, spec, DEVICE), Momentum(LAYOUT, spec, DEVICE)
    plain.fused, kernel.fused = None, fused_for(spec)
    gradients = gradients_of(0)
    for seed in (1, 2, 2):
        gradients = gradients_of(seed) if seed == 1 else gradients
        one = plain.accumulate_and_extract(gradients, 0.1, 3, 16)
        other = kernel.accumulate_and_extract(gradients, 0.1, 3, 16)
        assert torch.equal(one.components, other.components)
        torch.testing.assert_close(one.values, other.values, rtol=1e-4, atol=1e-7)
        assert (one.codes is None) == (other.codes is None)
        assert one.codes is None or other.codes is None or torch.equal(one.codes, other.codes)
    for name, tensor in plain.tensors().items():
        torch.testing.assert_close(kernel.tensors()[name], tensor, rtol=1e-4, atol=1e-6)
    assert_same_but_for_ties(plain.extract(4), kernel.extract(4))


def assert_same_but_for_ties(one: Sent, other: Sent) -> None:
    """Of coefficients that are equal but for rounding, which is sent depends on the processor. All else is the same."""
    found = [dict(zip(sent.components.tolist(), sent.values.tolist(), strict=True)) for sent in (one, other)]
    first, second = found
    shared = first.keys() & second.keys()
    assert [first[at] for at in shared] == pytest.approx([second[at] for at in shared], rel=1e-4, abs=1e-7)
    tied = [sorted((at // 4096, abs(value)) for at, value in each.items() if at not in shared) for each in found]
    assert [tile for tile, _ in tied[0]] == [tile for tile, _ in tied[1]]
    assert [size for _, size in tied[0]] == pytest.approx([size for _, size in tied[1]], rel=1e-4)
    for tile, size in tied[0]:  # a tie is at the boundary: nothing weaker was sent of its tile
        assert size == pytest.approx(min(abs(value) for at, value in first.items() if at // 4096 == tile), rel=1e-4)


def test_a_gradient_that_the_kernel_cannot_read_is_refused() -> None:
    """The kernel receives only an address, so it would read other memory."""
    momentum = Momentum(LAYOUT, spec_of(), DEVICE)
    momentum.fused = fused_for(spec_of())
    right = gradients_of(0)
    for wrong in (right["t1"].double(), right["t1"].T.contiguous().T, right["t1"][:50], right["t1"].to("meta")):
        with pytest.raises(ValueError, match="t1"):
            momentum.accumulate_and_extract(right | {"t1": wrong}, 0.1, 1, 4)


class FaultyCompressor(FusedCompressor):
    """Runs the kernel, and then introduces one fault."""

    fault = ""

    def extract(self, coefficients: Tensor, k: int, inputs: GradientInput | None = None) -> Extracted:
        before = coefficients.clone()
        seconds = [v.clone() for v in inputs.seconds] if inputs else []
        extracted = super().extract(coefficients, k, inputs)
        components, values, codes = extracted.components, extracted.values, extracted.codes
        if self.fault == "component":
            components = components + 1
        elif self.fault == "value":
            values = values * 1.01
        elif self.fault == "left":
            coefficients.add_(1e-3)
        elif self.fault == "code":
            codes = codes + 2
        elif self.fault == "inputs" and inputs is not None:
            coefficients.copy_(before.view(-1).index_add_(0, components, values, alpha=-1).view(-1, 64, 64))
        elif self.fault == "second":
            for v, old in zip(inputs.seconds if inputs else [], seconds, strict=True):
                v.copy_(old)
        return Extracted(components, values, codes)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("", ""),
        ("component", "other components"),
        ("value", "votes have other values"),
        ("left", "the remaining momentum differs"),
        ("code", "codes differ"),
        ("inputs", "gradients"),
        ("second", "second moments"),
    ],
)
def test_self_test_names_the_fault(fault: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TESTED_K", (32,))
    spec = spec_of(magnitude="tile", precondition="adam")
    made = FaultyCompressor(spec, DEVICE, ANYWHERE)
    made.fault = fault
    found = disagreement(made, spec, DEVICE)
    assert (expected in found) if expected else found == ""


def test_only_a_correct_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TESTED_K", (32,))
    spec = spec_of(precondition="adam")
    verdict = decide(spec, DEVICE)
    assert verdict.launch is not None
    assert "fused kernel" in verdict.why
    monkeypatch.setattr(trial, "GRADIENT_TOLERANCE", -1.0)
    verdict = decide(spec, DEVICE)
    assert verdict.launch is None
    assert "in torch" in verdict.why
    assert "gradients" in verdict.why


def test_one_compressor_for_two_models() -> None:
    """The kernel reads from a table which tensor a tile is of. The second model has more tiles."""
    spec, small, large = spec_of(), TileLayout([Parameter(name="w", shape=(70, 64))]), LAYOUT
    kernel = fused_for(spec)
    for layout in (small, large):
        plain, other = Momentum(layout, spec, DEVICE), Momentum(layout, spec, DEVICE)
        plain.fused, other.fused = None, kernel
        gradients = {tensor.name: torch.randn(tensor.shape, device=DEVICE) for tensor in layout.tensors}
        one, two = (momentum.accumulate_and_extract(gradients, 0.1, 1, 8) for momentum in (plain, other))
        assert torch.equal(one.components, two.components)


def test_without_triton_torch_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "thinwire.compression.triton.compress", None)
    verdict = decide(spec_of(), DEVICE)
    assert verdict.launch is None
    assert "Triton is not installed" in verdict.why


CUDA_ERROR = r"raise RuntimeError('CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` …\n')"
CUDA_ABORT = r"""
import os, sys
sys.stderr.write("terminate called after throwing an instance of 'c10::AcceleratorError'\n")
sys.stderr.write("  what():  CUDA error: an illegal memory access\nCompile with …\n\nframe #0: main\n\n")
sys.stderr.flush()
os.abort()
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import os; os.abort()", "it ended with -6"),
        ("raise ValueError('an illegal memory access')", "an illegal memory access"),
        (CUDA_ERROR, "failed (RuntimeError: CUDA error: out of memory)"),
        (CUDA_ABORT, "failed (CUDA error: an illegal memory access)"),
        ("print('nothing')", "JSONDecodeError"),
        ("", "IndexError"),
    ],
)
def test_a_trial_that_fails_costs_only_its_own_process(program: str, expected: str) -> None:
    verdict = verdict_of([sys.executable, "-c", program], 60.0)
    assert verdict.launch is None
    assert expected in verdict.why
    assert "in torch" in verdict.why


def test_a_trial_that_hangs_is_ended() -> None:
    verdict = verdict_of([sys.executable, "-c", "import time; time.sleep(60)"], 2.0)
    assert verdict.launch is None
    assert "longer than 2 s" in verdict.why


async def test_a_node_that_is_told_to_stop_does_not_wait_for_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def hanging_trainer(*arguments: object, **named: object) -> None:
        try:
            verdict_of([sys.executable, "-c", "import time; time.sleep(60)"], 60.0)
        except TrialEndedError:
            ended.set()

    monkeypatch.setattr(star_part, "Trainer", hanging_trainer)
    here = RealMachine(tmp_path, "cpu")
    state, contract = here.open_state(), small_contract()
    data = CorpusText(small_corpus(), contract)
    part = StarPart(PartSettings(contract, state, here, Record(), NodeOptions("a", 1, None), "nowhere:1"))
    making = asyncio.ensure_future(part.take_up(data, random_replica(contract)))
    while not fused._running:
        await asyncio.sleep(0.01)
    making.cancel()
    assert await asyncio.to_thread(ended.wait, 20)
    assert not fused._running
    state.close()


def test_the_trial_runs_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a card, the kernel runs in the interpreter there, with few tiles. A file in the working directory is no
    part of it."""
    (tmp_path / "queue.py").write_text("raise SystemExit('a file of the owner')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    verdict = tried(spec_of(k=1), torch.device("cpu"))
    assert verdict.launch == 0, verdict.why


def test_a_cpu_has_no_kernel() -> None:
    assert make_fused(spec_of(), torch.device("cpu")) is None


COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from thinwire.compression.triton.kernel import compress

pointers = dict(coefficients="*fp32", table="*i64", tensor_of="*i32", basis="*fp32", levels="*fp32", masks="*i32",
                counts="*i32", magnitudes="*fp32", codes="*u8")
numbers = dict(k="i32") | {name: "fp32" for name in "beta rate share second_beta second_scale".split()}
constants = dict(FED=True, ADAM=True, ALIGNED=True, CODED=True, PRECISION=sys.argv[1])
source = ASTSource(compress, pointers | numbers | {name: "constexpr" for name in constants}, constants,
                   {(index,): [["tt.divisibility", 16]] for index in range(len(pointers))})
target = {"tf32": GPUTarget("cuda", 90, 32), "ieee": GPUTarget("hip", "gfx942", 64)}[sys.argv[1]]
print(compile(source, target=target, options={"num_warps": 8}).asm[sys.argv[2]])
"""


@pytest.mark.parametrize(
    ("precision", "text", "instruction"), [("tf32", "ptx", "wgmma.mma_async"), ("ieee", "amdgcn", "mfma")]
)
def test_kernel_compiles_for_hopper_and_cdna3(precision: str, text: str, instruction: str) -> None:
    """The products use the matrix units."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, precision, text]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    assert instruction in done.stdout
