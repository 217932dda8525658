"""The environment for a program in the tests' folder that runs as a separate process."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def beside_the_tests() -> dict[str, str]:
    """The environment for `python -m simulator` and `python -m chaos`, started in the repository's root."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))}
