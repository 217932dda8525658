"""The command that runs one of our modules, independent of the working directory."""

from __future__ import annotations

import sys

from bench.wide_area.programs import ROOT


def program(name: str) -> list[str]:
    return ["/usr/bin/env", f"PYTHONPATH={ROOT}", sys.executable, "-m", name]
