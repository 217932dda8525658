"""The environment in which a program that lives beside the tests runs as a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def beside_the_tests() -> dict[str, str]:
    """For `python -m simulator` and `python -m chaos`, with the repository's root as the working directory."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))}
