"""Targets of the default, relative to AdamW on the same global batch."""

from __future__ import annotations

LOSS_TARGETS = {("own", 4): 0.005, ("own", 16): 0.005, ("own", 64): 0.005, ("fixed", 4): 0.005, ("fixed", 16): 0.02}
"""Largest relative loss above AdamW, by the kind of scaling and the number of nodes."""
BYTES_TARGET = 150
"""Smallest ratio of the bytes of a ring all-reduce to those of the default."""
