"""The arms of the study: method, settings and learning rates. The table in `docs/convergence/` has one row for each.

All arms get the same budget of learning rates. `rates` are three, a factor of RATE_FACTOR apart. If the best of them
lies at an edge, the plan extends the sweep beyond it, up to RATES_MAX rates (`plan.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from thinwire_proto.contract import DemoRuleSpec, DemoSpec, LocalAdamWSpec, LocalMuonSpec, RuleSpec
from thinwire_proto.contract.rules.muon import MuonSpec

Kind = Literal["adamw", "signum", "reference", "votes", "local", "diloco", "gossip", "push"]
WITHOUT_A_CENTRE: tuple[Kind, ...] = ("gossip", "push")
RATE_FACTOR = 1.5


@dataclass(frozen=True)
class Arm:
    """One arm.

    kind: the method. rate: the middle of the swept learning rates. demo: for the kinds that compress. local_steps: H,
    inner steps of a node in a round. beta: of Signum's momentum, or of AdamW's second moment. codec, gamma,
    is_noise_corrected, window, momentum and pull: in a gossip run. window: iterations of AccumAdamW; 1: AdamW.
    momentum: of Muon; 0: AdamW. pull: `exchange.gradient_pull`.
    """

    name: str
    what: str
    kind: Kind
    rate: float
    demo: DemoSpec = field(default_factory=DemoSpec)
    rule: RuleSpec = field(default_factory=DemoRuleSpec)
    local_steps: int = 1
    beta: float = 0.9
    codec: str = ""
    gamma: float = 1.0
    is_noise_corrected: bool = False
    window: int = 1
    momentum: float = 0.0
    pull: float = 0.0

    def can_have(self, nodes: int, samples: int) -> bool:
        """Whether the arm makes sense with so many nodes, and samples of all of them together."""
        if self.kind not in WITHOUT_A_CENTRE:
            return True
        return nodes > 1 and samples // nodes >= (2 if self.is_noise_corrected else 1)

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
    "gossip-accum",
    "gossip-push",
    "gossip-push-int8",
)
LOCAL_MUON = "muon-4"
"""Local steps with at least 150 times fewer bytes than a ring of sixteen nodes or more."""
CANDIDATES = ("k128-176", "k128-352", "k176-352")
"""Rules of how many components nodes send and updates keep, for the study of many nodes."""
REPEATED_ARMS = (*MAIN_ARMS, *GOSSIP_ARMS)
"""These arms run on every seed."""
NODES_MATTER = (REFERENCE, DEFAULT, *GOSSIP_ARMS)
"""Repeated arms whose result depends on the number of nodes; with an all-reduce the gradient does not."""
RATES_MAX = 5
"""Upper bound on the learning rates of an arm."""


def _local(steps: int, k: int) -> Arm:
    """Local steps whose difference is compressed. k: components a tile that a node sends."""
    demo = _demo(k=k, beta=0.95, magnitude="tile", precondition="none")
    rule = LocalAdamWSpec(micro_batch=1 << 20)
    what = f"{steps} local AdamW step{'s' if steps > 1 else ''} a round, their difference compressed"
    return Arm(f"local-{steps}", what, "local", 2e-3, demo, rule, local_steps=steps)


def _muon(steps: int, levels: int) -> Arm:
    """Local steps of Muon, whose difference travels with one bit a component. levels: `update_levels`."""
    rule = LocalMuonSpec(micro_batch=1 << 20)
    what = f"{steps} local Muon steps a round, one bit of their difference a component; an update has {2 * levels + 1} "
    what += "levels"
    demo = _demo(**rule.DEMO_DEFAULTS | {"update_levels": levels})
    return Arm(f"muon-{steps}", what, "local", 1.5e-2, demo, rule, local_steps=steps)


def _demo(**fields: object) -> DemoSpec:
    return DemoSpec.model_validate(fields)


def _gossip(name: str, codec: str, gamma: float = 1.0) -> tuple[Arm, Arm, Arm]:
    """A gossip exchange, with AdamW as it is, with its second moment corrected for noise, and with Muon."""
    what = f"gossip on the one-peer exponential graph, {codec}, γ {gamma:g}"
    adamw = Arm(name, what, "gossip", 3e-3, beta=0.99, codec=codec, gamma=gamma)
    return (
        adamw,
        replace(adamw, name=f"{name}-noise", what=f"{what}, v corrected for noise", is_noise_corrected=True),
        replace(adamw, name=f"{name}-muon", what=f"{what}, Muon", rate=1.5e-2, momentum=MuonSpec().momentum),
    )


def _pulled(arm: Arm) -> Arm:
    """The same with gradients pulled towards the peers."""
    return replace(arm, name=f"{arm.name}-pull", what=f"{arm.what}, gradients pulled by {PULL:g}", pull=PULL)


def _sent_and_kept(sent: int, kept: int) -> Arm:
    """Every node sends so many components a tile, however many nodes there are, and an update keeps the strongest."""
    what = f"every node sends {sent} components a tile, the update keeps the strongest {kept}; the rest is put back"
    demo = _demo(k=sent, update_topk=kept)
    return Arm(f"k{sent}-{kept}", what, "votes", 2e-3, demo)


PULL = 0.5
"""Between 0.4 and 0.6, which were best in runs of 1M tokens (docs/log/decentralized.md)."""
PUBLISHED: dict[str, object] = {
    "update_topk": 0,
    "beta": 0.999,
    "precondition": "none",
}
_SIGN = _gossip("gossip-sign", "sign")
_TABLE = (
    Arm(ADAMW, "AdamW, β 0.9 and 0.99, gradients all-reduced", "adamw", 3e-3, beta=0.99),
    Arm(REFERENCE, "DeMo as published, in float: β 0.999, k 32", "reference", 1.5e-3, _demo(**PUBLISHED, k=32)),
    Arm(DEFAULT, "the contract's defaults", "votes", 2e-3),
    _sent_and_kept(128, 176),
    _sent_and_kept(128, 352),
    _sent_and_kept(176, 352),
    Arm("reference-128", "the reference with k 128", "reference", 1.5e-3, _demo(**PUBLISHED, k=128)),
    Arm("signum", "sign of the momentum, β 0.9, gradients all-reduced", "signum", 3e-4, beta=0.9),
    _local(1, 44),
    _local(4, 176),
    _local(16, 352),
    _muon(4, 3),
    _muon(8, 7),
    _muon(16, 7),
    Arm(
        "diloco-4", "DiLoCo: 4 local AdamW steps a round, then an all-reduce", "diloco", 3e-4, local_steps=4, beta=0.99
    ),
    Arm("diloco-16", "the same with 16 steps", "diloco", 3e-3, local_steps=16, beta=0.99),
    *_gossip("gossip-dense", "dense"),
    *_SIGN,
    *(_pulled(arm) for arm in (_SIGN[0], _SIGN[2])),
    Arm(
        "gossip-accum",
        "gossip on the one-peer exponential graph, dense, AccumAdamW with windows of 4",
        "gossip",
        3e-3,
        beta=0.99,
        codec="dense",
        window=4,
    ),
    Arm("gossip-push", "push-sum on the directed exponential graph, dense", "push", 3e-3, beta=0.99, codec="dense"),
    Arm("gossip-push-int8", "the same with int8", "push", 3e-3, beta=0.99, codec="int8"),
)
ARMS = {arm.name: arm for arm in _TABLE}
