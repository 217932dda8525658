"""The aggregation rules of sign votes that look at both sides of a component; each is one file of this package.

A rule is a function of the weight for + and the weight for − of each component and of the round's total weight. All
three are sums of integers, so a rule gives the same result in any order of the contributions and through any tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from thinwire_proto.kinds import Kinds

Weights: TypeAlias = npt.NDArray[np.int16]
Rule: TypeAlias = Callable[[Any, Weights, Weights, int], Weights]
"""(the contract's spec, weight for + [n], weight for − [n], total weight of the round) → merged votes [n], int16."""

RULES: Kinds[Rule] = Kinds("aggregation", __name__)
