"""Imports the modules that register kinds: those of a home package first, then those of installed packages."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Container
from importlib.metadata import entry_points

from thinwire_proto.errors import ConfigError

ENTRY_POINTS = "thinwire.kinds"
"""The entry-point group in which installed packages name the modules that register their kinds."""


def _import_home(home: str) -> None:
    """Import a module and, if it is a package, every module in it."""
    found = importlib.import_module(home)
    for module in pkgutil.iter_modules(getattr(found, "__path__", ())):
        importlib.import_module(f"{home}.{module.name}")


class KindModules:
    """The modules that may register kinds with one registry.

    homes: packages or modules with this project's kinds. They are imported when the registry lacks a kind, or before a
    kind from elsewhere is registered, which could otherwise take the name of one of theirs."""

    def __init__(self, *homes: str) -> None:
        self._homes = homes
        self._are_homes_imported = False
        self._are_packages_imported = False

    def load_before(self, kind: object) -> None:
        """Call this before a class, function or object is registered."""
        if not any(f"{kind.__module__}.".startswith(f"{home}.") for home in self._homes):
            self._load_homes()

    def import_for(self, kind: str, known: Container[str]) -> None:
        """Import modules until `known` has the kind or all are imported.

        Installed packages are imported only if no home has the kind, so a broken package does no harm to a run that
        does not need it. Raises ConfigError if a package is broken and the kind is still unknown."""
        if kind not in known:
            self._load_homes()
        if kind not in known and not self._are_packages_imported:
            problems = _import_packages()
            if problems and kind not in known:
                raise ConfigError("; ".join(problems))
            self._are_packages_imported = not problems

    def _load_homes(self) -> None:
        if not self._are_homes_imported:
            for home in self._homes:
                _import_home(home)
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
