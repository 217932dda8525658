"""Tagged unions: sections of which there are several kinds. The key `kind` says which one a contract has.

Each kind is one file. It defines a spec, which is a pydantic model, and registers it:

    @EXCHANGES.register(since="0.2.0")
    class StarSpec(ExchangeSpec):
        kind: Literal["star"] = "star"

No list names the kinds. A union imports every module of its home package when it is asked for a kind that it does not
know yet. An installed package adds kinds through the entry-point group `thinwire.kinds`; each entry names a module,
which registers its kinds when it is imported. Spec files must not import torch: a coordinator reads contracts only.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from thinwire_proto.contract.sections import Section

ENTRY_POINTS = "thinwire.kinds"
UNKNOWN_KIND = "unknown_kind"
"""The type of pydantic's error for a kind that nobody registered."""


class KindSpec(Section):
    """A section that is one of several kinds. Each kind overrides `kind` with a literal."""

    kind: str


Spec = TypeVar("Spec", bound=KindSpec)
New = TypeVar("New", bound=KindSpec)


@dataclass(frozen=True)
class Kind(Generic[Spec]):
    name: str
    spec: type[Spec]
    since: str
    """The first thinwire that knows this kind."""


class TaggedUnion(Generic[Spec]):
    """The kinds of one section. As an annotation, `Annotated[Base, UNION]`, it makes pydantic read the right spec.

    section: the contract's key. base: what all specs derive from. default: the kind of a section that names none.
    home: the package whose modules are the kinds.
    """

    def __init__(self, section: str, base: type[Spec], default: str, home: str) -> None:
        self.section = section
        self._base = base
        self._default = default
        self._home = home
        self._kinds: dict[str, Kind[Spec]] = {}
        self._is_home_imported = False

    def register(self, since: str) -> Callable[[type[New]], type[New]]:
        """Decorates a spec. Its `kind` must have a default, which is its name."""

        def register(registered: type[New]) -> type[New]:
            spec, name = registered, registered.model_fields["kind"].default
            if not issubclass(spec, self._base) or not isinstance(name, str):
                raise TypeError(f"{spec.__qualname__} must derive from {self._base.__name__}, with a default for kind")
            known = self._kinds.get(name)
            if known is not None and _path(known.spec) != _path(spec):
                raise TypeError(f"{self.section}.kind {name!r} is {_path(known.spec)} and {_path(spec)}")
            self._kinds[name] = Kind(name, spec, since)
            return registered

        return register

    def find(self, name: str) -> Kind[Spec] | None:
        """The kind of that name, if this thinwire or an installed package has it."""
        if name not in self._kinds and not self._is_home_imported:
            self._is_home_imported = True
            package = importlib.import_module(self._home)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._home}.{module.name}")
            for entry in entry_points(group=ENTRY_POINTS):
                entry.load()
        return self._kinds.get(name)

    def __iter__(self) -> Iterator[Kind[Spec]]:
        """All kinds, by name."""
        self.find("")
        return iter([self._kinds[name] for name in sorted(self._kinds)])

    def kind_of(self, given: object) -> Kind[Spec] | None:
        """The kind of a section, which may be a spec already or still a table."""
        name = given.get("kind", self._default) if isinstance(given, dict) else getattr(given, "kind", self._default)
        return self.find(name) if isinstance(name, str) else None

    def read(self, given: object) -> Spec:
        """The spec of a table. Raises pydantic's ValidationError or PydanticCustomError."""
        if isinstance(given, self._base):
            return given
        if not isinstance(given, dict):
            raise PydanticCustomError("table", "input should be a table")
        kind = self.kind_of(given)
        if kind is None:
            names = ", ".join(kind.name for kind in self)
            error = PydanticCustomError(UNKNOWN_KIND, "there is no such kind; there are {names}", {"names": names})
            detail = InitErrorDetails(type=error, loc=("kind",), input=given["kind"])
            raise ValidationError.from_exception_data(self.section, [detail])
        return kind.spec.model_validate({"kind": kind.name} | given)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)


def _path(spec: type[KindSpec]) -> str:
    return f"{spec.__module__}.{spec.__qualname__}"
