"""Registers code by name: what a contract names as a kind, and the topologies and codecs of gossip.

Each kind is a file that registers itself. A registry imports its homes when it is asked for a kind that it does not
know yet: single modules, or packages with every module in them. If the kind is still unknown, it imports the modules
that installed packages name in the entry-point group `thinwire.kinds`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.kind_modules import KindModules

Kind = TypeVar("Kind")
New = TypeVar("New")


class Kinds(Generic[Kind]):
    """what: what is named, for errors: a key of the contract, or a word. homes: where this project's kinds are."""

    def __init__(self, what: str, *homes: str) -> None:
        self._what = what
        self._modules = KindModules(*homes)
        self._known: dict[str, Kind] = {}

    def register(self, name: str) -> Callable[[New], New]:
        """A decorator. Its argument must be a `Kind`; a type checker sees that where the kind is asked for. Raises
        ConfigError if the name is taken."""

        def put(kind: New) -> New:
            self._modules.load_before(kind)
            if name in self._known:
                raise ConfigError(f"{self._what}: the name {name!r} is taken; choose another")
            self._known[name] = kind  # type: ignore[assignment]
            return kind

        return put

    def names(self) -> tuple[str, ...]:
        """The names of all kinds, this project's first."""
        self._modules.import_for("", self._known)
        return tuple(self._known)

    def find(self, name: str) -> Kind | None:
        """None if there is no such kind here. Raises ConfigError if an installed package cannot be imported."""
        self._modules.import_for(name, self._known)
        return self._known.get(name)

    def __getitem__(self, name: str) -> Kind:
        """Raises ContractError if there is no such kind here, or ConfigError as `find`."""
        found = self.find(name)
        if found is None:
            known = ", ".join(sorted(self._known))
            raise ContractError(f"{self._what}: this version has {known}, and no {name!r}; install a newer version")
        return found
