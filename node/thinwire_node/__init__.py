"""The node: trains on a volunteer's machine, keeps its momentum there, and sends only its largest components.

`DeMo` is the optimizer alone, for use in any training script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire_node.optimizer.optimizer import DeMo

__all__ = ["DeMo"]


def __getattr__(name: str) -> Any:
    """Load the optimizer, and torch with it, only on demand, so that `thinwire-node status` starts quickly."""
    if name == "DeMo":
        from thinwire_node.optimizer.optimizer import DeMo  # noqa: PLC0415

        return DeMo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
