"""Bounds what another library builds from a stranger's config: the modules of a model, whatever their names.

A config of a few bytes can ask for a million experts. The tensors of a model that is built on "meta" have no memory,
but its modules do, and they take time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
    """Within it, this thread builds a model of at most MODULES_MAX modules. Raises TooManyModules."""
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
