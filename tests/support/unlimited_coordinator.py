"""A coordinator that lets everybody call as often as they like. All its other bounds hold. For the fuzzer, whose inputs
come from one address and far too often.

python unlimited_coordinator.py serve …
"""

from __future__ import annotations

import sys

from thinwire_coordinator import __main__
from thinwire_coordinator.hall.access import admission
from thinwire_coordinator.hall.access.admission import Bounds, Rate
from thinwire_proto import limits

RATES = ("strangers_calls", "strangers_calls_in_all", "failed_joins", "calls_of_a_node")

if __name__ == "__main__":
    limits.REFUSAL_PAUSE_S = 0.0
    setattr(admission, "CONTRIBUTIONS_A_ROUND", 1 << 40)  # noqa: B010 - mypy knows that it is imported there
    for name in RATES:
        assert isinstance(getattr(Bounds(1), name), Rate)
        setattr(Bounds, name, Rate(burst=1 << 40, each_s=1e-9))
    sys.argv = ["thinwire-coordinator", *sys.argv[1:]]
    __main__.main()
