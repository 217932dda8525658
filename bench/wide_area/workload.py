"""The training workload of every cell, for the swarm and for the baseline.

It is chosen so that an exchange of all gradients in float32 over 10 Mbit/s takes more than ten times as long as the
computation between two exchanges. 0.886M parameters are 5.3 MB a node on a ring of four, which takes over four seconds.
2,304 tokens a node take about 0.42 s when four nodes share two cores.
"""

from __future__ import annotations

NODES = 4
PRESET = "byte-1m"
SAMPLES = 9
"""Samples of a node in a round, without dilation, unless the command says otherwise. For the baseline: of a rank in an
exchange, unless the swarm turns out to use another number."""
MICRO_BATCH = 3
"""Samples of a forward and backward pass. Several passes must fit between two exchanges, otherwise `no_sync` has no
effect."""
THREADS = 1
SEED = 1


def round_samples(samples: float, dilation: float) -> int:
    """Samples of a node in a round, if a second of the machine's clock stands for 1/dilation seconds: whole
    micro-batches, as in the baseline. samples: without dilation."""
    return max(1, round(samples * dilation / MICRO_BATCH)) * MICRO_BATCH


def run_toml(samples: int) -> str:
    """The run file. samples: of a node in a round."""
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
samples = {samples}
weight_max = 8

[data]
seed = {SEED}
"""
