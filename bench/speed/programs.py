"""The command that runs a module of ours, from wherever."""

from __future__ import annotations

import sys

from bench.wide_area.programs import ROOT


def program(name: str) -> list[str]:
    return ["/usr/bin/env", f"PYTHONPATH={ROOT}", sys.executable, "-m", name]
