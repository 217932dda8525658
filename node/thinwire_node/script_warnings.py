"""Warnings that name a line of the user's script, however deep in hooks and libraries they come up."""

from __future__ import annotations

import sys
import warnings

NOT_THE_SCRIPT = ("thinwire_node", "torch", "contextlib")


def warn_script(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=_level_of_script())


def _level_of_script() -> int:
    """The `stacklevel` with which the caller's warning names the line of the script."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in NOT_THE_SCRIPT:
        level, frame = level + 1, frame.f_back
    return level
