"""Modules of other libraries as models, with a bound on what those build from a stranger's config."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from thinwire_proto.errors import ConfigError

MODULES_MAX = 1 << 17
"""A mixture of 61 layers with 256 experts of four modules each has 63,000."""


class TooManyModules(ConfigError):
    """The model has more modules than a node builds."""


@contextmanager
def bounded_build() -> Iterator[None]:
    """Within it, this thread builds a model of at most MODULES_MAX modules. Raises TooManyModules.

    A config of a few bytes can ask for a million experts. On "meta", tensors have no memory, but modules do."""
    builder, count = threading.get_ident(), 0

    def registered(parent: nn.Module, name: str, child: nn.Module | None) -> None:
        nonlocal count
        if threading.get_ident() != builder:
            return
        count += 1
        if count > MODULES_MAX:
            raise TooManyModules(f"the model has more than {MODULES_MAX:,} modules; take a smaller one")

    hook = register_module_module_registration_hook(registered)
    try:
        yield
    finally:
        hook.remove()


class Wrapped(nn.Module):
    """A module of another library. Its parameters keep the names that they have there; subclasses add a loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        return self.inner.named_parameters(prefix, recurse, remove_duplicate)

    def stages(self) -> Iterable[nn.Module]:
        """The modules of the list with the most parameters: the layers, whatever the library calls them."""
        lists = [module for module in self.inner.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
        return max(lists, key=_size, default=nn.ModuleList([self.inner]))


def _size(module: nn.Module) -> tuple[int, int]:
    """Parameters, and of two modules with the same ones the longer list."""
    count = sum(parameter.numel() for parameter in module.parameters())
    return count, sum(1 for _ in module.children())
