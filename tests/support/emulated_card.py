"""A card in the memory of the CPU: its tensors name another device, and refuse to be mixed with those of the host.

Their numbers are computed by the CPU, so they have the bits of a node without a card.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

CARD = torch.device("meta")
"""Of the devices that torch knows without their libraries, the one whose tensors can be indexed."""
HOST = torch.device("cpu")
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class OnCard(Tensor):
    """A tensor of the emulated card. held: its numbers, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls: type[OnCard], held: Tensor) -> OnCard:
        made: OnCard = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=CARD
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
        strangers = [one for one in tensors if not isinstance(one, OnCard) and one.dim()]
        if strangers and func not in COPIES:
            raise RuntimeError(f"{func}: tensors of the card and of the host")
        to = torch.device(kwargs.pop("device", None) or CARD)
        if func is torch.ops.aten.copy_.default:
            to = args[0].device
        held_args, held_kwargs = tree_map_only(OnCard, lambda one: one.held, (args, kwargs))
        found = func(*held_args, **held_kwargs)
        of_held = {id(one.held): one for one in tensors if isinstance(one, OnCard)}
        wrapped = tree_map_only(Tensor, lambda one: of_held[id(one)] if id(one) in of_held else OnCard(one), found)
        return wrapped if to.type == CARD.type else found


class _MakesTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets tensors be made on the card, and moved to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        to = kwargs.get("device")
        if to is None or torch.device(to).type != CARD.type:
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(OnCard, lambda one: one.held, (args, kwargs | {"device": HOST}))
        return OnCard(func(*args, **kwargs))


@contextmanager
def emulated_card() -> Iterator[torch.device]:
    """Provide a device that tensors can be made on and moved to, on this thread."""
    with _MakesTensors():  # type: ignore[no-untyped-call]
        yield CARD
