"""The rule `merged_muon`: a node sends its mean gradient, and keeps what it has not sent (error feedback).

    e ← e + mean gradient,  e ← e − sent                    at the extraction

The momentum and the step of Muon come after the merge, on every replica alike: `thinwire_proto.exact.merged_step`.
"""

from __future__ import annotations

from thinwire.compression.sent import Sent
from thinwire_node.rules import RULES
from thinwire_node.star.rules.demo import DemoRule


@RULES.register("merged_muon")
class MergedMuon(DemoRule):
    """Adds the mean gradient to what is not sent yet, at its own size: the rate belongs to the step. It never looks
    ahead, because its bases are the newest step."""

    def extract(self, k: int, rate: float) -> Sent:
        return super().extract(k, 1.0)
