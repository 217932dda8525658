"""The rule `local_adamw`: a node takes local AdamW steps and compresses the difference of the parameters."""

from __future__ import annotations

from typing import ClassVar, Literal

from thinwire_proto.contract.rules import RULES
from thinwire_proto.contract.rules.local_steps import LocalStepsSpec


@RULES.register
class LocalAdamWSpec(LocalStepsSpec):
    """A node takes local steps of AdamW and sends the compressed difference of its parameters."""

    NEEDS_WHOLE: ClassVar[str] = ""
    RATE_OVER_DEMO: ClassVar[float] = 1.5
    """0.003 over 0.002."""

    kind: Literal["local_adamw"] = "local_adamw"
