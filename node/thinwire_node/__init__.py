"""Runs forward and backward on a volunteer's machine, keeps its momentum there, and sends the largest of it.

`DeMo` is the optimizer alone, for anybody's training script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire_node.optimizer.optimizer import DeMo

__all__ = ["DeMo"]


def __getattr__(name: str) -> Any:
    """Load the optimizer, and with it torch, only for who asks for it: `thinwire-node status` is not to wait."""
    if name == "DeMo":
        from thinwire_node.optimizer.optimizer import DeMo  # noqa: PLC0415

        return DeMo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
