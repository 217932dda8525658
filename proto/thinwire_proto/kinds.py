"""Registries of what a contract, a script or the planner names: specs, tasks, data, rules, exchanges, codecs, methods.

Each kind is a file that registers itself. A registry imports its homes when it is asked for a kind that it does not
know yet: single modules, or packages with every module in them. If the kind is still unknown, it imports the modules
that installed packages name in the entry-point group `thinwire.kinds`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from thinwire_proto.errors import ConfigError, ContractError

ENTRY_POINTS = "thinwire.kinds"
"""The entry-point group in which installed packages name the modules that register their kinds."""
Kind = TypeVar("Kind")
New = TypeVar("New")


class Kinds(Generic[Kind]):
    """key: what names a kind, for errors, such as `model.kind`. homes: packages or modules with this project's kinds.
    They are also imported before a kind from elsewhere is registered, which could otherwise take the name of one of
    theirs."""

    def __init__(self, key: str, *homes: str) -> None:
        self._key = key
        self._homes = homes
        self._known: dict[str, Kind] = {}
        self._are_homes_imported = False
        self._are_packages_imported = False

    def register(self, name: str) -> Callable[[New], New]:
        """A decorator. Its argument must be a `Kind`; a type checker sees that where the kind is asked for. Raises
        ConfigError if the name is taken."""

        def put(kind: New) -> New:
            if not any(f"{kind.__module__}.".startswith(f"{home}.") for home in self._homes):
                self._import_homes()
            if name in self._known:
                raise ConfigError(f"{self._key}: the name {name!r} is taken; choose another")
            self._known[name] = kind  # type: ignore[assignment]
            return kind

        return put

    def names(self) -> tuple[str, ...]:
        """The names of all kinds, this project's first."""
        self.find("")
        return tuple(self._known)

    def find(self, name: str) -> Kind | None:
        """The kind of this name; None if there is none.

        Installed packages are imported only if no home has the kind, so a broken package does no harm to a run that
        does not need it. Raises ConfigError if a package is broken and the kind is still unknown."""
        if name not in self._known:
            self._import_homes()
        if name not in self._known and not self._are_packages_imported:
            problems = _import_packages()
            if problems and name not in self._known:
                raise ConfigError("; ".join(problems))
            self._are_packages_imported = not problems
        return self._known.get(name)

    def __getitem__(self, name: str) -> Kind:
        """Raises ContractError if there is no such kind here, or ConfigError; see `find`."""
        found = self.find(name)
        if found is None:
            known = ", ".join(sorted(self._known))
            raise ContractError(f"{self._key}: this version has {known}, and no {name!r}; install a newer version")
        return found

    def _import_homes(self) -> None:
        if self._are_homes_imported:
            return
        for home in self._homes:
            found = importlib.import_module(home)
            for module in pkgutil.iter_modules(getattr(found, "__path__", ())):
                importlib.import_module(f"{home}.{module.name}")
        self._are_homes_imported = True


def _import_packages() -> list[str]:
    """Import what the entry points name. Returns a problem for each one that fails."""
    problems = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # noqa: BLE001 - the code of another package may raise anything
            name = f"entry point {entry.name} = {entry.value} in {ENTRY_POINTS}"
            problems.append(f"{name}: cannot be imported: {error!r}; repair or remove its package")
    return problems
