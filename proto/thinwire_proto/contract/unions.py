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
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from thinwire_proto.contract.sections import Section
from thinwire_proto.kinds import Kinds

UNKNOWN_KIND = "unknown_kind"
"""The pydantic error type for a kind that is not registered."""


class KindSpec(Section):
    """A section that is one of several kinds. Each kind overrides `kind` with a literal."""

    DERIVED: ClassVar[tuple[str, ...]] = ()
    """Keys that the coordinator computes."""
    LOCAL: ClassVar[tuple[str, ...]] = ()
    """Keys of a run file that name files of the coordinator's machine. They are empty in a contract."""

    kind: str


Spec = TypeVar("Spec", bound=KindSpec)
New = TypeVar("New", bound=KindSpec)


class TaggedUnion(Generic[Spec]):
    """The kinds of one section. With the annotation `Annotated[Base, UNION]`, pydantic reads the right spec.

    section: the section's key in the contract. base: the base class of all specs. default: the kind of a section
    without the key `kind`. home: the package whose modules define the kinds.
    """

    def __init__(self, section: str, base: type[Spec], default: str, home: str) -> None:
        self.section = section
        self._base = base
        self._default = default
        self._specs: Kinds[type[Spec]] = Kinds(f"{section}.kind", home)

    def register(self, registered: type[New]) -> type[New]:
        """Decorator that registers a spec. The default of its field `kind` is the kind's name.

        Raises ConfigError if the name is taken."""
        spec, name = registered, registered.model_fields["kind"].default
        if not issubclass(spec, self._base) or not isinstance(name, str):
            raise TypeError(f"{spec.__qualname__} must derive from {self._base.__name__}, with a default for kind")
        self._specs.register(name)(spec)
        return registered

    def find(self, name: str) -> type[Spec] | None:
        """The spec of this kind, or None if neither thinwire nor an installed package defines it.

        Raises ConfigError if the kind is unknown and an installed package cannot be imported."""
        return self._specs.find(name)

    def __iter__(self) -> Iterator[tuple[str, type[Spec]]]:
        """All kinds and their specs, ordered by name."""
        return iter([(name, self._specs[name]) for name in sorted(self._specs.names())])

    def spec_of(self, given: object) -> type[Spec] | None:
        """The spec for a section, given as a spec or as a table."""
        name = given.get("kind", self._default) if isinstance(given, dict) else getattr(given, "kind", self._default)
        return self.find(name) if isinstance(name, str) else None

    def read(self, given: object) -> Spec:
        """Turn a table into its spec. Raises pydantic's ValidationError or PydanticCustomError."""
        if isinstance(given, self._base):
            return given
        if not isinstance(given, dict):
            raise PydanticCustomError("table", "input should be a table")
        spec = self.spec_of(given)
        if spec is None:
            names = ", ".join(name for name, _ in self)
            error = PydanticCustomError(UNKNOWN_KIND, "there is no such kind; there are {names}", {"names": names})
            detail = InitErrorDetails(type=error, loc=("kind",), input=given["kind"])
            raise ValidationError.from_exception_data(self.section, [detail])
        return spec.model_validate({"kind": self._default} | given)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)
