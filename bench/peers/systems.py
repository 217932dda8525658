"""The systems that the benchmark compares, each with its version and with what its user writes and types."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
TORCH = "torch==2.13.0"
NEEDED = (TORCH, "numpy==2.2.6", "pydantic==2.14.3", "msgpack==1.2.4", "zstandard==0.25.0", "safetensors==0.8.0")
"""Packages for the common part of all scripts: thinwire's model and text, and the file of parameters."""


@dataclass(frozen=True)
class System:
    """One system. In its commands, `{bin}` stands for the environment's programs, and `{coordinator}` for the address
    of the host that does not train."""

    name: str
    what: str
    package: str = ""
    """Its requirements, its own first; empty: what it needs is in thinwire's own environment."""
    script: str = ""
    """The file in `scripts/` that its user writes; empty: thinwire, whose users write none."""
    imports: str = ""
    """For a system without a script: the module that a script would import, and that the index's package lacks."""
    project: str = ""
    """Another file that its user writes."""
    node: tuple[str, ...] = ()
    """The command of a node, if it is not the script; `{options}` stands for the script's options."""
    helper: tuple[str, ...] = ()
    """A command on the host that does not train, before the nodes start."""
    join: str = ""
    """A pattern; what matches it in the helper's log is given to the nodes."""
    submit: tuple[str, ...] = ()
    """A command on the host that does not train, after the nodes have started."""
    config: str = ""
    """The file config.toml that `submit` reads."""
    commands: int = 1
    """Number of commands that a user types."""
    init: tuple[str, ...] = ()
    """Options of `thinwire-coordinator init`."""
    equal: bool = True
    """Whether the system promises equal replicas."""

    @property
    def lines(self) -> int:
        """Lines of code that a user writes."""
        written = count_lines((SCRIPTS / f"{self.script}.py").read_text(encoding="utf-8")) if self.script else 0
        if self.project:
            written += sum(bool(line.strip()) for line in (SCRIPTS / self.project).read_text("utf-8").splitlines())
        return written


_FLOWER_CONFIG = """[superlink]
default = "bench"

[superlink.bench]
address = "{coordinator}:8000"
insecure = true
"""
_LIGHTHOUSE = ("{bin}/torchft_lighthouse", "--bind", "0.0.0.0:29510", "--min_replicas", "2")
SYSTEMS = (
    System("thinwire", "star run as `init` writes it, but for the schedule", commands=3),
    System("thinwire local Muon", "the same with `--rule local_muon`", commands=3, init=("--rule", "local_muon")),
    System("thinwire demo", "the same with `--rule demo`", commands=3, init=("--rule", "demo")),
    System("DDP", "PyTorch DistributedDataParallel, AdamW", script="ddp"),
    System("DDP Muon", "the same with PyTorch's Muon, and AdamW for the embedding and vectors", script="ddp_muon"),
    System(
        "hivemind",
        "`Optimizer`, gradients of all peers averaged in 8 bits, AdamW",
        "hivemind==1.1.12",
        "hivemind_optimizer",
        helper=("{bin}/hivemind-dht", "--host_maddrs", "/ip4/{coordinator}/tcp/29520"),
        join=r"/ip4/\S+/p2p/\w+",
        commands=2,
    ),
    System("torchft DDP", "fault tolerant DDP, AdamW", "torchft==0.2.0", "torchft_ddp", helper=_LIGHTHOUSE, commands=2),
    System(
        "torchft DiLoCo",
        "Streaming DiLoCo, two fragments, 16 steps of AdamW",
        "torchft==0.2.0",
        "torchft_diloco",
        helper=(*_LIGHTHOUSE, "--join_timeout_ms", "5000"),
        commands=2,
    ),
    System(
        "decent-dp",
        "gossip with one peer a step, on the exponential graph, AdamW",
        "decent-dp==0.2.3",
        "decent",
        equal=False,
    ),
    System("detonation", "DeMo as published", "detonation==0.5.2 mltiming==0.0.5", "detonation_demo"),
    System(
        "Flower",
        "`FedAvg` of 8 steps of AdamW; each round starts a new process on a node",
        "flwr==1.42.0",
        "flower/app",
        project="flower/pyproject.toml",
        helper=(
            "{bin}/flower-superlink",
            "--insecure",
            "--host",
            "0.0.0.0",
            "--disable-runtime-dependency-installation",
        ),
        node=(
            *("{bin}/flower-supernode", "--insecure", "--superlink", "{coordinator}:8000"),
            *("--node-config", 'options="{options}"'),
        ),
        submit=("{bin}/flwr", "run", str(SCRIPTS / "flower"), "bench"),
        config=_FLOWER_CONFIG,
        commands=3,
    ),
    System(
        "exogym", "strategies such as DiLoCo, simulated in one process", "exogym==0.0.0a0", imports="exogym.trainer"
    ),
)


def count_lines(source: str) -> int:
    """Lines of a script that are neither blank, nor comments, nor docstrings."""
    lines = {number for number, line in enumerate(source.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)
