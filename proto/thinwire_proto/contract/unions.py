"""Tagged unions: sections with several kinds. The key `kind` selects one of them.

Each kind is one file, which defines a spec (a pydantic model) and registers it:

    @EXCHANGES.register
    class StarSpec(ExchangeSpec):
        kind: Literal["star"] = "star"

There is no central list of kinds. When a union is asked for an unknown kind, it imports every module of its home
package. If the kind is still unknown, it imports the modules that installed packages name in the entry-point group
`thinwire.kinds`; these register their kinds on import. Spec files must not import torch, which takes seconds, so that
commands which only read contracts start at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from thinwire_proto.contract.sections import Section
from thinwire_proto.kind_modules import KindModules

UNKNOWN_KIND = "unknown_kind"
"""The pydantic error type for a kind that is not registered."""


class KindSpec(Section):
    """A section that is one of several kinds. Each kind overrides `kind` with a literal."""

    kind: str


Spec = TypeVar("Spec", bound=KindSpec)
New = TypeVar("New", bound=KindSpec)


@dataclass(frozen=True)
class Kind(Generic[Spec]):
    """A registered kind."""

    name: str
    spec: type[Spec]


class TaggedUnion(Generic[Spec]):
    """The kinds of one section. With the annotation `Annotated[Base, UNION]`, pydantic reads the right spec.

    section: the section's key in the contract. base: the base class of all specs. default: the kind of a section
    without the key `kind`. home: the package whose modules define the kinds.
    """

    def __init__(self, section: str, base: type[Spec], default: str, home: str) -> None:
        self.section = section
        self._base = base
        self._default = default
        self._kinds: dict[str, Kind[Spec]] = {}
        self._modules = KindModules(home)

    def register(self, registered: type[New]) -> type[New]:
        """Decorator that registers a spec. The default of its field `kind` is the kind's name."""
        spec, name = registered, registered.model_fields["kind"].default
        if not issubclass(spec, self._base) or not isinstance(name, str):
            raise TypeError(f"{spec.__qualname__} must derive from {self._base.__name__}, with a default for kind")
        self._modules.load_before(spec)
        known = self._kinds.get(name)
        if known is not None and _path(known.spec) != _path(spec):
            raise TypeError(f"{self.section}.kind {name!r} is defined by {_path(known.spec)} and {_path(spec)}")
        self._kinds[name] = Kind(name, spec)
        return registered

    def find(self, name: str) -> Kind[Spec] | None:
        """The kind with this name, or None if neither thinwire nor an installed package defines it.

        Raises ConfigError if the kind is unknown and an installed package cannot be imported."""
        self._modules.import_for(name, self._kinds)
        return self._kinds.get(name)

    def __iter__(self) -> Iterator[Kind[Spec]]:
        """All kinds, ordered by name."""
        self.find("")
        return iter([self._kinds[name] for name in sorted(self._kinds)])

    def kind_of(self, given: object) -> Kind[Spec] | None:
        """The kind of a section, given as a spec or as a table."""
        name = given.get("kind", self._default) if isinstance(given, dict) else getattr(given, "kind", self._default)
        return self.find(name) if isinstance(name, str) else None

    def read(self, given: object) -> Spec:
        """Turn a table into its spec. Raises pydantic's ValidationError or PydanticCustomError."""
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
