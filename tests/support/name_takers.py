"""Registers a kind under the name of one of this project's, before any of these is imported: `python name_takers.py`.

Prints the error for each registry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from thinwire_node.kinds import KINDS
from thinwire_planner.methods.method import register_method
from thinwire_proto.contract.exchanges import EXCHANGES, ExchangeSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.codec import Codec, register_codec
from thinwire_proto.gossip.topology import register_topology
from thinwire_proto.task import TASKS


class MySpec(ExchangeSpec):
    kind: Literal["star"] = "star"


def mine(*_: object) -> object:
    raise NotImplementedError


TRIES: tuple[Callable[[], object], ...] = (
    lambda: register_topology("ring")(mine),  # type: ignore[arg-type]
    lambda: register_codec("sign")(Codec),
    lambda: register_method("star")(mine),
    lambda: EXCHANGES.register(MySpec),
    lambda: TASKS.register("decoder")(mine),
    lambda: KINDS.register("star")(mine),
)

for take in TRIES:
    try:
        take()
    except (ConfigError, TypeError) as error:
        print(error)
    else:
        print("no refusal")
