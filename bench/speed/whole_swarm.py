"""Peak memory of a node and of the coordinator beside it, while they train one of the presets for a few steps.

python -m bench.speed.whole_swarm [--model llama-350m] [--context 2048]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from bench.speed.memory import swarm_peaks
from bench.speed.training_rows import MEMORY_RUN, MEMORY_STEPS
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.models import PRESETS
from thinwire_proto.task import task_of

GIB = 1 << 30
TIME_MAX_S = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.speed.whole_swarm", description=__doc__)
    parser.add_argument("--model", choices=PRESETS, default="llama-350m")
    parser.add_argument("--context", type=int, default=None, metavar="TOKENS", help="default: the preset's")
    arguments = parser.parse_args()
    model = PRESETS[arguments.model]
    context = arguments.context or model.context
    parameters = layout_of(task_of(model).manifest()).parameters
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as name:
        run = Path(name) / "run.toml"
        run.write_text(MEMORY_RUN.format(model=arguments.model, context=context, steps=MEMORY_STEPS))
        node, coordinator = swarm_peaks(Path(name) / "swarm", run, MEMORY_STEPS, TIME_MAX_S)
    print(
        f"{arguments.model}, {parameters:,} parameters, samples of {context:,} tokens, {MEMORY_STEPS} steps in "
        f"{time.monotonic() - began:.0f} s"
    )
    for what, peak in (("node", node), ("coordinator", coordinator), ("both", node + coordinator)):
        print(f"{what}: peak {peak / GIB:.1f} GiB, {peak / parameters:.1f} bytes a parameter")


if __name__ == "__main__":
    main()
