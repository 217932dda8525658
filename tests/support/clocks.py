"""The clocks of a node in tests that ask for no time."""

from __future__ import annotations

import time

from thinwire_node.runtime import Clocks

CLOCKS = Clocks(time.monotonic, lambda: 0.0)
