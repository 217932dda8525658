"""Prints a text that comes in pieces, such as what a model writes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable

from thinwire_proto.clean_text import shown_as_written


def print_pieces(pieces: Iterable[str]) -> None:
    """Print pieces of text at once, and the end of a line. Ends quietly when the program that reads them has ended."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    seen = shown_as_written if sys.stdout.isatty() else str  # strangers trained the model; a file gets what it wrote
    try:
        for piece in pieces:
            print(seen(piece), end="", flush=True)
        print(flush=True)
    except KeyboardInterrupt:
        print(flush=True)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails when it flushes at exit
