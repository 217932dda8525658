"""The arms of the study: method, settings and learning rates. The table in `docs/convergence/` has one row for each.

All arms get the same budget of learning rates. `rates` are three, a factor of RATE_FACTOR apart. If the best of them
lies at an edge, the plan extends the sweep beyond it, up to RATES_MAX rates (`plan.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from thinwire_proto.contract import DemoRuleSpec, DemoSpec, LocalAdamWSpec, LocalMuonSpec, MergedMuonSpec, RuleSpec
from thinwire_proto.contract.rules.muon import MuonSpec

Kind = Literal["adamw", "reference", "votes", "diloco", "gossip"]
RATE_FACTOR = 1.5


@dataclass(frozen=True)
class Arm:
    """One arm.

    kind: the method. rate: the middle of the swept learning rates. demo, rule: for the kinds that compress.
    local_steps: H, inner steps of a node in a round. beta: of AdamW's second moment. codec, is_noise_corrected,
    momentum and pull: in a gossip run. momentum: of Muon; 0: AdamW. pull: `exchange.gradient_pull`.
    """

    name: str
    what: str
    kind: Kind
    rate: float
    demo: DemoSpec = field(default_factory=DemoSpec)
    rule: RuleSpec = field(default_factory=DemoRuleSpec)
    local_steps: int = 1
    beta: float = 0.99
    codec: str = ""
    is_noise_corrected: bool = False
    momentum: float = 0.0
    pull: float = 0.0

    def can_have(self, nodes: int, samples: int) -> bool:
        """Whether the arm makes sense with so many nodes, and samples of all of them together."""
        if self.kind != "gossip":
            return True
        return nodes > 1 and samples // nodes >= (2 if self.is_noise_corrected else 1)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as written to results: without the rates."""
        unused = {"name", "what", "rate"} | ({"demo", "rule"} if self.kind not in ("reference", "votes") else set())
        adapter = TypeAdapter(Arm)
        found: dict[str, Any] = adapter.dump_python(self, mode="json", exclude=unused, serialize_as_any=True)
        return found

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates of the first sweep, ascending."""
        return tuple(rate_at(self.rate, offset) for offset in (-1, 0, 1))


def rate_at(middle: float, offset: int) -> float:
    """The rate `offset` sweep steps away from the middle, rounded to three digits so that it can be part of a file
    name."""
    return float(f"{middle * RATE_FACTOR**offset:.3g}")


ADAMW, REFERENCE, DEFAULT = "adamw", "reference", "thinwire"
MAIN_ARMS = (ADAMW, REFERENCE, DEFAULT)
GOSSIP_ARMS = (
    "gossip-dense",
    "gossip-dense-noise",
    "gossip-dense-muon",
    "gossip-sign",
    "gossip-sign-noise",
    "gossip-sign-muon",
    "gossip-sign-muon-pull",
)
LOCAL_MUON = "muon-4"
"""Local steps with at least 150 times fewer bytes than a ring of sixteen nodes or more."""
MERGED_MUON = "merged-muon"
REPEATED_ARMS = (*MAIN_ARMS, *GOSSIP_ARMS)
"""These arms run on every seed."""
NODES_MATTER = (REFERENCE, DEFAULT, *GOSSIP_ARMS)
"""Repeated arms whose result depends on the number of nodes; with an all-reduce the gradient does not."""
RATES_MAX = 5
"""Upper bound on the learning rates of an arm."""
PULL = 0.5
"""Between 0.4 and 0.6, which were best in runs of 1M tokens (docs/log/decentralized.md)."""


def _gossip(name: str, codec: str) -> tuple[Arm, Arm, Arm]:
    """A gossip exchange, with AdamW as it is, with its second moment corrected for noise, and with Muon."""
    what = f"gossip on the one-peer exponential graph, {codec}"
    adamw = Arm(name, what, "gossip", 3e-3, codec=codec)
    return (
        adamw,
        replace(adamw, name=f"{name}-noise", what=f"{what}, v corrected for noise", is_noise_corrected=True),
        replace(adamw, name=f"{name}-muon", what=f"{what}, Muon", rate=1.5e-2, momentum=MuonSpec().momentum),
    )


_SIGN = _gossip("gossip-sign", "sign")
_ADAMW_RULE, _MUON_RULE = LocalAdamWSpec(micro_batch=1 << 20), LocalMuonSpec(micro_batch=1 << 20)
_TABLE = (
    Arm(ADAMW, "AdamW, β 0.9 and 0.99, gradients all-reduced", "adamw", 3e-3),
    Arm(
        REFERENCE,
        "DeMo as published, in float: β 0.999, k 32",
        "reference",
        1.5e-3,
        DemoSpec(k=32, update_topk=0, beta=0.999, precondition="none"),
    ),
    Arm(DEFAULT, "the contract's defaults", "votes", 2e-3),
    Arm(
        "local-4",
        "4 local AdamW steps a round, their difference compressed",
        "votes",
        2e-3,
        DemoSpec(k=176, beta=0.95, magnitude="tile", precondition="none"),
        _ADAMW_RULE,
        local_steps=4,
    ),
    Arm(
        LOCAL_MUON,
        "4 local Muon steps a round, one bit of their difference a component; an update has 7 levels",
        "votes",
        1.5e-2,
        DemoSpec.model_validate(_MUON_RULE.DEMO_DEFAULTS | {"update_levels": 3}),
        _MUON_RULE,
        local_steps=4,
    ),
    Arm(
        MERGED_MUON,
        "gradients in seven levels with error feedback; Muon of the merged gradient, on every replica",
        "votes",
        1.5e-2,
        DemoSpec.model_validate(MergedMuonSpec.DEMO_DEFAULTS),
        MergedMuonSpec(),
    ),
    Arm("diloco-4", "DiLoCo: 4 local AdamW steps a round, then an all-reduce", "diloco", 3e-4, local_steps=4),
    Arm("diloco-16", "the same with 16 steps", "diloco", 3e-3, local_steps=16),
    *_gossip("gossip-dense", "dense"),
    *_SIGN,
    replace(_SIGN[2], name="gossip-sign-muon-pull", what=f"{_SIGN[2].what}, gradients pulled by {PULL:g}", pull=PULL),
)
ARMS = {arm.name: arm for arm in _TABLE}
