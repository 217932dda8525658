"""Registers the code of the kinds that a contract names: a model's task, a data source, a local rule.

Each kind is a file that registers itself. No list names them: a registry imports every module of its home package when
it is asked for a kind that it does not know yet. Other packages register theirs when they are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.kind_modules import Home

Kind = TypeVar("Kind")
New = TypeVar("New")


class Kinds(Generic[Kind]):
    """section: the contract's key, for errors. home: the package whose modules are this project's kinds."""

    def __init__(self, section: str, home: str) -> None:
        self._section = section
        self._home = Home(home)
        self._known: dict[str, Kind] = {}

    def register(self, name: str) -> Callable[[New], New]:
        """A decorator. Its argument must be a `Kind`; a type checker sees that where the kind is asked for. Raises
        ConfigError if the name is taken."""

        def put(kind: New) -> New:
            self._home.load_before(kind)
            if name in self._known:
                raise ConfigError(f"{self._section}.kind: the name {name!r} is taken; choose another")
            self._known[name] = kind  # type: ignore[assignment]
            return kind

        return put

    def __getitem__(self, name: str) -> Kind:
        """Raises ContractError if there is no such kind here."""
        if name not in self._known:
            self._home.load()
        if name not in self._known:
            known = ", ".join(sorted(self._known))
            raise ContractError(f"{self._section}.kind: this thinwire has no {name!r}; it has {known}")
        return self._known[name]
