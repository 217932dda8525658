"""The exchange `gossip`: each node steps by itself, and averages its parameters with a few others."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.rules.own_steps import OwnStepsSpec
from thinwire_proto.contract.sections import unit
from thinwire_proto.contract.trained import Trained

GOSSIP_BYTES_A_PARAMETER = 60
"""x, the first parameters twice, gradient and its sum, moments, and the journal's tensors again."""
PULLED_BYTES_A_PARAMETER = 4
"""Where gradients are computed, with `exchange.gradient_pull`."""
EDGE_BYTES_A_PARAMETER = 24
"""An edge's two copies, a third while turns are open, and the same in the journal while it is written."""
JOURNAL_BYTES_A_PARAMETER = 16
"""The journal: x, the first parameters and both moments."""
JOURNAL_EDGE_BYTES_A_PARAMETER = 12
"""In it for each edge: two copies, and messages that are not confirmed or whose turn is open."""
REPORT_BYTES = 512
"""A node's report in the body and the row of a beat: session, head, figures, signature and two hashes."""
CHANGEABLE = frozenset({"data.held_out", "data.weights"})
"""Keys that an amendment may have, beside those of the schedule. The nodes have no other key in common that does not
shape their messages, their leases or their state."""
LINGERING_MAX = 4
"""Edges that have ended and stay a while; each takes the memory of an edge. See `thinwire_proto.gossip.peer`."""
FEW_EDGES = {"ring": 2, "random-regular": 4, "matching": 4}
"""Peers of a node, in topologies where they do not grow with the nodes."""


@EXCHANGES.register
class GossipSpec(ExchangeSpec):
    """Each node steps by itself, and averages its parameters with a few others. docs/decentralized.md describes it."""

    kind: Literal["gossip"] = "gossip"
    topology: Literal[
        "alternating-exponential-ring", "complete", "matching", "one-peer-exponential", "random-regular", "ring"
    ] = "one-peer-exponential"
    """who mixes with whom in each iteration"""
    codec: Literal["dense", "bf16", "int8", "sign"] = "sign"
    """what a message carries"""
    gamma: float = Field(1.0, gt=0, le=1)
    """γ: the fraction of the way to the peers' copies that mixing goes"""
    gradient_pull: float = Field(0.0, ge=0, le=1)
    """part of the way, from a node's own parameters to the mean of them and of what it knows of its peers, at which it
    computes gradients; costs no byte; 0: at its own"""
    slack: int = Field(0, ge=0, le=4, json_schema_extra=unit("iterations"))  # gossip.iteration.SLACK_MAX
    """iterations that a message may be late before a node waits for it"""
    patience_ms: int = Field(30_000, ge=100, le=3_600_000, json_schema_extra=unit("ms"))
    """a node waits at most so long in an iteration for its peers"""

    def may_change(self, key: str) -> bool:
        return key in CHANGEABLE or key.startswith("schedule.")

    def check(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec) -> None:
        if not isinstance(rule, OwnStepsSpec):
            raise ValueError(
                'exchange.kind = "gossip" needs a rule with which each node steps by itself, such as "adamw" or '
                f'"muon"; rule.kind is "{rule.kind}"'
            )

    def trained_bytes(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec, trained: Trained) -> int:
        own = GOSSIP_BYTES_A_PARAMETER + (PULLED_BYTES_A_PARAMETER if self.gradient_pull else 0)
        return (own + EDGE_BYTES_A_PARAMETER * self._edges_of_a_node(rounds.nodes_max)) * trained.parameters

    def state_bytes(self, demo: DemoSpec, rounds: RoundSpec, trained: Trained) -> int:
        edges = JOURNAL_EDGE_BYTES_A_PARAMETER * self._edges_of_a_node(rounds.nodes_max)
        return (JOURNAL_BYTES_A_PARAMETER + edges) * trained.parameters

    def _edges_of_a_node(self, nodes: int) -> int:
        """The most peers with which a node has an edge. Edges that have ended and linger count too."""
        if self.topology in FEW_EDGES:
            return min(FEW_EDGES[self.topology] + LINGERING_MAX, nodes - 1)
        if self.topology in ("one-peer-exponential", "alternating-exponential-ring"):
            return min(2 * nodes.bit_length() + 2 + LINGERING_MAX, nodes - 1)
        return nodes - 1
