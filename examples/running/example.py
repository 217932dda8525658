"""Runs one example from its first command to its page."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from deploy.local_swarm.processes import SwarmError
from examples.running.figures import PAGE, Figures, draw, figures_of, with_figures
from examples.running.swarm import Swarm, run_command

EVALUATE_EVERY = 10


@dataclass(frozen=True)
class Example:
    """An example.

    folder: its folder in the repository, with RUN.toml. prepare: makes what the run file names, in the folder of the
    run. after: checks the finished run and returns what it found, by name.
    """

    folder: Path
    prepare: Callable[[Path, Console], None] = lambda folder, console: None
    after: Callable[[Swarm, Path], dict[str, str]] = lambda swarm, folder: {}
    serve: Sequence[str] = ()


def main(example: Example) -> None:
    """Run the example, and write its figures, curve and page."""
    parser = argparse.ArgumentParser(f"python -m examples.{example.folder.name}")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for the state and the logs")
    parser.add_argument("--keep-page", action="store_true", help="do not change the figures in the repository")
    arguments = parser.parse_args()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    folder = arguments.runs.absolute() / f"example-{example.folder.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        figures = _run(example, folder, console)
    except SwarmError as error:
        console.print(str(error), style="red")
        sys.exit(1)
    if not arguments.keep_page:
        page = example.folder / PAGE
        figures.write(example.folder)
        draw(figures, example.folder)
        page.write_text(with_figures(page.read_text(), figures))
        console.print(f"figures written to {page}")


def _run(example: Example, folder: Path, console: Console) -> Figures:
    shutil.copy(example.folder / "run.toml", folder / "run.toml")
    example.prepare(folder, console)
    with Swarm(folder, console) as swarm:
        serve = ("--run", str(folder / "run.toml"), "--evaluate-every", str(EVALUATE_EVERY), *example.serve)
        finished = swarm.run(serve)
    if not finished.replicas_equal:
        raise SwarmError(f"the replicas are not proven equal; logs in {folder}")
    figures = figures_of(finished)
    figures.checks = example.after(swarm, folder)
    for name, result in figures.checks.items():
        console.print(f"{name}: {result}")
    return figures


def prepare(console: Console, *arguments: str) -> None:
    """Run `thinwire-coordinator prepare`."""
    console.print(shlex.join(["thinwire-coordinator", "prepare", *arguments]), soft_wrap=True, markup=False)
    console.print(run_command("thinwire-coordinator", "prepare", *arguments))
