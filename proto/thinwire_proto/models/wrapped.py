"""A module of another library as a `Model`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn


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
