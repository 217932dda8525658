"""The arms of the study: method, settings and where their sweeps begin.

A new arm is an entry of `_TABLE`; the plan gives it all cells, in the order of the table. A new kind is a file with a
`Method`, an entry of `run.METHODS`, and its name in `Kind`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from thinwire_planner.methods.growth import FINE_FROM, GROWTHS, Growth
from thinwire_proto.contract import DemoRuleSpec, DemoSpec, LocalMuonSpec, MergedMuonSpec, RuleSpec
from thinwire_proto.contract.rules.muon import MuonSpec

Kind = Literal["adamw", "muon", "reference", "diloco", "sparseloco", "votes", "gossip"]


@dataclass(frozen=True)
class Arm:
    """One arm.

    kind: the method. rate, outer: where the sweep of the learning rate begins, and of the outer rate; outer 0: it has
    none. demo, rule: for the kinds that compress. local_steps: H, inner steps of a node in a round. beta: of AdamW's
    second moment. momentum: of Muon; 0: AdamW. adamw_rate: factor on the rate of what takes no steps of Muon, in the
    dense kinds. outer_momentum: of the outer step. codec, pull: in a gossip run; pull: `exchange.gradient_pull`.
    growth: of the rounds; empty: all are equally large. fine_from: smaller rounds, in samples of the first, have votes
    in seven levels. like: the arm whose best rates it has; empty: it is swept.
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
    momentum: float = 0.0
    adamw_rate: float = MuonSpec().adamw_rate
    pull: float = 0.0
    outer: float = 0.0
    outer_momentum: float = 0.0
    growth: Growth = ()
    fine_from: int = 1
    like: str = ""

    @property
    def is_dense(self) -> bool:
        """Whether its loss is the same with any number of nodes, since the mean of all gradients is exchanged."""
        return self.kind in ("adamw", "muon")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as written to results: without the rates."""
        unused = {"name", "what", "rate", "outer", "like"}
        unused |= {"demo", "rule"} if self.kind not in ("reference", "votes") else set()
        adapter = TypeAdapter(Arm)
        found: dict[str, Any] = adapter.dump_python(self, mode="json", exclude=unused, serialize_as_any=True)
        return found


ADAMW, MUON, MUON_HALF, REFERENCE, DEFAULT = "adamw", "muon", "muon-half", "reference", "thinwire"
MUON_GROWING, MUON_GROWING_16 = "muon-half-growing", "muon-half-growing-16"
DENSE = (ADAMW, MUON, MUON_HALF, MUON_GROWING, MUON_GROWING_16)
"""The arms of the yardstick: all others are compared with the best of them."""
LOCAL_MUON = "muon-4"
"""Local steps with at least 150 times fewer bytes than a ring of sixteen nodes or more."""
MERGED_MUON, MERGED_FINE = "merged-muon", "merged-muon-fine"
FINE_GROWING, FINER_GROWING = "merged-muon-fine-growing", "merged-muon-finer-growing"
GROWTH = GROWTHS[8]
PULL = 0.5
"""Between 0.4 and 0.6, which were best in runs of 1M tokens (docs/log/decentralized.md)."""
_MOMENTUM = MuonSpec().momentum
_MERGED = Arm(
    MERGED_MUON,
    "gradients in seven levels with error feedback; Muon of the merged gradient, on every replica",
    "votes",
    1.5e-2,
    DemoSpec.model_validate(MergedMuonSpec.DEMO_DEFAULTS),
    MergedMuonSpec(),
)
_MUON = Arm(
    MUON,
    "Muon, momentum 0.9, embeddings and vectors at 0.2 times the rate, every gradient exchanged",
    "muon",
    1.5e-2,
    momentum=_MOMENTUM,
)
_MUON_HALF = replace(_MUON, name=MUON_HALF, what=_MUON.what.replace("0.2", "0.5"), adamw_rate=0.5)
_MUON_RULE = LocalMuonSpec(micro_batch=1 << 20)
_LOCAL = 32
"""H of the arms of others, in place of the 30 that MuLoCo and SparseLoCo publish, so that all arms train on equally
many tokens."""
_GOSSIP = Arm(
    "gossip-sign-muon",
    "gossip on the one-peer exponential graph, one bit a parameter, steps of Muon",
    "gossip",
    1.5e-2,
    codec="sign",
    momentum=_MOMENTUM,
)
_TABLE = (
    Arm(ADAMW, "AdamW, β 0.9 and 0.99, every gradient exchanged", "adamw", 3e-3),
    _MUON,
    _MUON_HALF,
    replace(
        _MUON_HALF,
        name=MUON_GROWING,
        what="muon-half; after 1/16, 1/8 and 1/4 of the tokens, rounds have 2, 4 and 8 times the samples, and the rate "
        "is higher by the square root; it falls from the last of these on",
        growth=GROWTH,
        like=MUON_HALF,
    ),
    replace(
        _MUON_HALF,
        name=MUON_GROWING_16,
        what="the same; after 1/16, 1/8, 1/4 and 7/16 of the tokens, rounds have 2, 4, 8 and 16 times the samples",
        growth=GROWTHS[16],
        like=MUON_HALF,
    ),
    Arm(DEFAULT, "the contract's defaults: signs of the largest 96 components of a tile", "votes", 2e-3),
    Arm(
        LOCAL_MUON,
        "4 local steps of Muon a round, one bit of their difference a component; an update has 7 levels",
        "votes",
        1.5e-2,
        DemoSpec.model_validate(_MUON_RULE.DEMO_DEFAULTS | {"update_levels": 3}),
        _MUON_RULE,
        local_steps=4,
    ),
    _MERGED,
    replace(
        _MERGED,
        name=MERGED_FINE,
        what="the same in nineteen levels, a third as far apart; an update has 31",
        demo=DemoSpec.model_validate(MergedMuonSpec.FINE),
    ),
    replace(
        _MERGED,
        name=FINE_GROWING,
        what="the same in rounds as those of muon-half-growing",
        demo=DemoSpec.model_validate(MergedMuonSpec.FINE),
        growth=GROWTH,
        like=MERGED_FINE,
    ),
    replace(
        _MERGED,
        name=FINER_GROWING,
        what="the same in rounds as those of muon-half-growing-16, with seven levels until the last two sizes",
        demo=DemoSpec.model_validate(MergedMuonSpec.FINE),
        growth=GROWTHS[16],
        fine_from=FINE_FROM[16],
        like=MERGED_FINE,
    ),
    Arm(
        "muloco",
        f"MuLoCo (arXiv 2505.23725): {_LOCAL} local steps of Muon, outer Nesterov with momentum 0.6, not compressed",
        "diloco",
        1.5e-2,
        local_steps=_LOCAL,
        momentum=_MOMENTUM,
        outer=0.7,
        outer_momentum=0.6,
    ),
    Arm(
        "diloco",
        f"DiLoCo (arXiv 2311.08105): {_LOCAL} local steps of AdamW, outer Nesterov with momentum 0.9",
        "diloco",
        3e-3,
        local_steps=_LOCAL,
        outer=0.7,
        outer_momentum=0.9,
    ),
    Arm(
        "sparseloco",
        f"SparseLoCo (arXiv 2508.15706): {_LOCAL} local steps of AdamW, then the largest 64 of 4,096 in 2 bits, error "
        "feedback with β 0.95",
        "sparseloco",
        3e-3,
        local_steps=_LOCAL,
        outer=1.0,
    ),
    Arm(
        REFERENCE,
        "DeMo (arXiv 2411.19870) as published, in float: β 0.999, k 32",
        "reference",
        1.5e-3,
        DemoSpec(k=32, update_topk=0, beta=0.999, precondition="none"),
    ),
    replace(
        _GOSSIP, name="gossip-dense-muon", what=_GOSSIP.what.replace("one bit a parameter", "dense"), codec="dense"
    ),
    _GOSSIP,
    replace(_GOSSIP, name="gossip-sign-muon-pull", what=f"{_GOSSIP.what}, gradients pulled by {PULL:g}", pull=PULL),
)
ARMS = {arm.name: arm for arm in _TABLE}
