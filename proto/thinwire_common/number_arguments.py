"""Numbers on a command line, for argparse, which otherwise names the function that could not read one."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}
LARGEST = (1 << 62) - 1


def number(text: str, wanted: str, fits: Callable[[float], bool]) -> float:
    """A number that `fits`. wanted: what fits, in words."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if math.isnan(found) or not fits(found):
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
    return found


def above_zero(text: str) -> float:
    return number(text, "a number above 0", lambda found: 0 < found < math.inf)


def whole(text: str) -> int:
    """A whole number, of any sign."""
    if not (text.isascii() and text.removeprefix("-").isdecimal()):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}")
    return int(text)


def within(least: int, most: int, unit: str = "") -> Callable[[str], int]:
    """A reader of whole numbers within bounds. unit: in words, for its error."""

    def read(text: str) -> int:
        if not least <= (found := whole(text)) <= most:
            raise argparse.ArgumentTypeError(f"must be {least:,} to {most:,}{unit and ' ' + unit}, not {text}")
        return found

    return read


def count(text: str) -> int:
    """A whole number of 1 or more; 2e9 and 500M are understood."""
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        found = float(text.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        found = math.nan
    if not (1 <= found <= LARGEST and found.is_integer()):
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, as in 200, 500M or 2e9, not {text}")
    return int(found)
