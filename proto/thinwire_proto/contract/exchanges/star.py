"""The exchange `star`: one coordinator merges the contributions of all nodes, seals updates and serves them."""

from __future__ import annotations

from typing import ClassVar, Literal

from thinwire_proto.contract.demo import DemoSpec
from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.contract.sections import WEIGHT_SUM_MAX
from thinwire_proto.contract.trained import Trained

NODE_BYTES_A_PARAMETER = 17
"""With what follows, above the measured peak (docs/log/speed.md): parameters, sum of gradients, second moment, and on a
card, or while a snapshot is taken up, one more set of tensors."""
SECOND_BYTES_A_PARAMETER = 4
"""The second moment among these, if the contract has one."""
MOMENTUM_BYTES_A_COMPONENT = 4
"""Components are those of whole tiles: a narrow matrix, such as an adapter's, has more of them than parameters."""
SENT_BYTES_A_COMPONENT = 40
"""For each component of a contribution: its votes, what extracting and encoding take meanwhile, and a copy that waits
for its outcome."""
UPDATE_BYTES_A_COMPONENT = 28
"""For each component of an update, while it is decoded and applied."""
WHOLE_SENT_BYTES_A_COMPONENT, LEVELS_BYTES_A_COMPONENT = 4, 8
"""The same where a contribution has whole tiles, and where an update has levels: a byte in each of their copies. The
newest two updates and their bodies are kept."""
LOOK_AHEAD_BYTES_A_PARAMETER = 5
"""More where bases may be older than the newest step (docs/performance.md, peak memory)."""
STATE_BYTES_A_PARAMETER = 8
STATE_BYTES_A_COMPONENT = 4
STATE_BYTES_A_SENT_COMPONENT, STATE_BYTES_A_WHOLE_COMPONENT = 24, 2
"""The files of a node: parameters and second moment in float32, the momentum, and two contributions without an outcome.
Twice that while it replaces them."""


def most_nodes(largest_vote: int, weight_max: int) -> int:
    """The most nodes whose merged votes fit an int16. largest_vote: `DemoSpec.largest_vote`."""
    return WEIGHT_SUM_MAX // (weight_max * largest_vote)


@EXCHANGES.register
class StarSpec(ExchangeSpec):
    """One coordinator merges the contributions of all nodes, seals updates and serves them."""

    ORDERS_AHEAD: ClassVar[bool] = True

    kind: Literal["star"] = "star"

    def may_change(self, key: str) -> bool:
        return True

    def check(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec) -> None:
        if rule.STEPS_ALONE:
            raise ValueError(
                f'rule.kind = "{rule.kind}" needs exchange.kind = "gossip", where each node steps by itself'
            )
        for key, value in rule.ROUND_DEFAULTS.items():
            if getattr(rounds, key) != value:
                raise ValueError(
                    f'round.{key} must be {value} for rule.kind = "{rule.kind}", whose steps go astray on older '
                    f"gradients; it is {getattr(rounds, key)}"
                )
        if rounds.nodes_max > most_nodes(demo.largest_vote, rounds.weight_max):
            raise ValueError(
                f"round.nodes_max · round.weight_max · the largest vote, demo.vote_levels, must be at most "
                f"{WEIGHT_SUM_MAX}, so that merged votes fit an int16; it is "
                f"{rounds.nodes_max} · {rounds.weight_max} · {demo.largest_vote}"
            )

    def trained_bytes(self, demo: DemoSpec, rounds: RoundSpec, rule: RuleSpec, trained: Trained) -> int:
        each = NODE_BYTES_A_PARAMETER + rule.MORE_BYTES_A_PARAMETER
        each += LOOK_AHEAD_BYTES_A_PARAMETER if rounds.base_age_max else 0
        travelling = _sent_bytes(demo, trained) + _update_bytes(demo, rounds, trained)
        return each * trained.parameters + MOMENTUM_BYTES_A_COMPONENT * trained.components + travelling

    def own_moments_bytes(self, demo: DemoSpec, rule: RuleSpec, trained: Trained) -> int:
        each = rule.OWN_MOMENT_BYTES_A_PARAMETER + (SECOND_BYTES_A_PARAMETER if demo.precondition == "adam" else 0)
        return each * trained.parameters + MOMENTUM_BYTES_A_COMPONENT * trained.components

    def state_bytes(self, demo: DemoSpec, rounds: RoundSpec, trained: Trained) -> int:
        files = STATE_BYTES_A_PARAMETER * trained.parameters + STATE_BYTES_A_COMPONENT * trained.components
        each = STATE_BYTES_A_WHOLE_COMPONENT if demo.sends_whole_tiles else STATE_BYTES_A_SENT_COMPONENT
        return files + each * trained.chosen(demo.k)


def _sent_bytes(demo: DemoSpec, trained: Trained) -> int:
    """Memory of a contribution from its extraction until its outcome is known."""
    each = WHOLE_SENT_BYTES_A_COMPONENT if demo.sends_whole_tiles else SENT_BYTES_A_COMPONENT
    return each * trained.chosen(demo.k)


def _update_bytes(demo: DemoSpec, rounds: RoundSpec, trained: Trained) -> int:
    """Memory of an update that arrives."""
    if demo.update_levels:
        return LEVELS_BYTES_A_COMPONENT * trained.components
    return UPDATE_BYTES_A_COMPONENT * trained.chosen(demo.update_topk or demo.k * rounds.nodes_max)
