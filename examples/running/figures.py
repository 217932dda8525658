"""The figures of a run: what `figures.json` holds, and the table and the curve that follow from it."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from examples.running.swarm import NODES, Curves, Finished
from thinwire_common.units import human_bytes
from thinwire_proto.all_reduce import ring_bytes

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
FIGURES, CURVE, PAGE = "figures.json", "curve.png", "README.md"


@dataclass
class Figures:
    """Figures of one run. losses: see `Finished`. checks: what else was checked, in words, with its result."""

    parameters: int
    steps: int
    tokens: int
    seconds: float
    losses: Curves
    bytes_per_node: float
    comparisons: int
    verified: str
    torch_version: str = torch.__version__
    machine: str = f"{platform.machine()}, {torch.get_num_threads()} threads"
    checks: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        (folder / FIGURES).write_text(json.dumps(asdict(self), indent=1) + "\n")


def figures_of(run: Finished) -> Figures:
    status = run.status
    return Figures(
        parameters=status.parameters,
        steps=status.step,
        tokens=status.tokens,
        seconds=run.seconds,
        losses=run.losses,
        bytes_per_node=run.bytes_per_node,
        comparisons=status.fingerprints_compared,
        verified=replayed_line(run.verified),
    )


def replayed_line(verified: str) -> str:
    """The line of `verify` about the replay."""
    return next(line for line in verified.splitlines() if line.startswith("replayed"))


def read_figures(folder: Path) -> Figures:
    found = json.loads((folder / FIGURES).read_text())
    found["losses"] = {name: [(step, loss) for step, loss in curve] for name, curve in found["losses"].items()}
    return Figures(**found)


def table(figures: Figures) -> str:
    """The table of a run, in Markdown."""
    dense = ring_bytes(NODES) * figures.parameters * figures.steps
    times = f"{dense / figures.bytes_per_node:.0f} times as much"
    rows = {
        "parameters that train": f"{figures.parameters:,}",
        "steps, nodes": f"{figures.steps}, {NODES}",
        **{f"held-out loss{of_set(name, figures.losses)}": fall(curve) for name, curve in figures.losses.items()},
        "time, with both kills": f"{figures.seconds:.0f} s ({figures.machine})",
        "sent and received by a node": f"{human_bytes(figures.bytes_per_node)}, everything included",
        "the same by float32 ring all-reduce": f"{human_bytes(dense)}, {times}",
        "replicas": f"all {NODES + 1} bitwise equal at the end, and in all {figures.comparisons} comparisons since the "
        "coordinator's restart",
        "`thinwire-coordinator verify`": figures.verified,
    } | figures.checks
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def of_set(name: str, curves: Curves) -> str:
    return f" of {name}" if len(curves) > 1 else ""


def fall(curve: list[tuple[int, float]]) -> str:
    (first_step, first), (last_step, last) = curve[0], curve[-1]
    return f"{first:.3f} at step {first_step} → {last:.3f} at step {last_step}, in nats per token"


def with_figures(page: str, figures: Figures) -> str:
    """The page with the table between its marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(figures)}\n\n![held-out loss by step]({CURVE})\n{END}{tail}"


def draw(figures: Figures, folder: Path) -> None:
    """Draw the curve of the held-out loss."""
    import matplotlib as mpl  # noqa: PLC0415 - slow

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    picture, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    for name, curve in figures.losses.items():
        axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=name)
    if len(figures.losses) > 1:
        axes.legend()
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss, nats per token")
    axes.grid(alpha=0.3)
    picture.savefig(folder / CURVE, dpi=110)
    plt.close(picture)
