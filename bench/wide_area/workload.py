"""What is trained in every cell, by the swarm and by the baseline alike.

It is chosen so that an exchange of all gradients in float32 over 10 Mbit/s takes more than ten times as long as the
computing between two exchanges: 0.886M parameters weigh 5.3 MB a node on a ring of four, over four seconds; 2,304
tokens a node take about 0.42 s where two cores are shared by four nodes.
"""

from __future__ import annotations

NODES = 4
PRESET = "byte-1m"
SAMPLES = 9
"""A node and round, where time is not dilated; for the baseline, a rank and exchange, unless the swarm is found to do
another number."""
MICRO_BATCH = 3
"""Samples a forward and backward pass. More than one pass fits between two exchanges, or `no_sync` would do nothing."""
THREADS = 1
SEED = 1


def samples(dilation: float) -> int:
    """A node and round, where a second of the machine's clock stands for 1/dilation seconds."""
    return round(SAMPLES * dilation)


def run_toml(dilation: float) -> str:
    return f"""
[model]
preset = "{PRESET}"

[schedule]
steps = 1000000
warmup_steps = 10

[round]
pace = "barrier"
length_ms = 30000
base_age_max = 1
min_contributions = 1
samples = {samples(dilation)}
weight_max = 8

[data]
seed = {SEED}
"""
