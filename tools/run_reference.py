"""Write docs/run-file.md, the reference of RUN.toml, from the code of the contract, or check it (`--check`)."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from thinwire_proto.contract import ModelSpec, RuleSpec, RunSpec, Section, TaggedUnion
from thinwire_proto.contract.run import UNIONS
from thinwire_proto.exact.amendments import is_amendable
from thinwire_proto.models import PRESETS
from thinwire_proto.task import task_of
from tools.generated import write_or_check

OPENING = """# The run file

A run file is a [TOML](https://toml.io) file with up to seven sections, and [amendments](#amend) of them. Every key
has a default, so an empty file is a run too: the byte model on the Python standard library.
[organizer.md](organizer.md) is the guide to running one.

Everything in a run file is what the coordinator and all nodes must agree on. When the run is created, it becomes the
*contract*, whose hash names the run. Keys that are marked ✎ may change while the run goes on, by
[`thinwire-coordinator amend`](changing.md); the others cannot. What only one process needs, such as addresses and
folders, is an [option of its command](operating.md#options-and-variables).

Sections with `kind` have several kinds, and a key belongs to some of them. An unknown key is an error.

`python -m tools.run_reference` generates this page from the code.
"""
AMENDMENTS = """## [[amend]]

A table `[[amend]]` changes keys of the run from a later step on. It is an [amendment](changing.md#amendments) that is
ordered as the run is created. A file may have up to 256 of them, but none in a gossip run. They are no part of the
contract, and `thinwire-coordinator amend` lists and withdraws them.

```toml
[[amend]]
at = 5000
round.samples = 8
schedule.learning_rate = 0.0014
because = "late steps have use for larger rounds"
```

| key | values | meaning |
|---|---|---|
| `at` | integer, at least 1 | the first step that it holds for |
| `because` | text, at most 500 long | why, for the ledger, the page and the model card |
| any key with ✎ but `data.held_out`, with its section | as in that section | the new value |
"""
SECTIONS = ("model", "data", "schedule", "round", "demo", "rule", "exchange")
POWERS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
HEAD_OF_KINDS = "| key | of kind | values | default | unit | meaning |\n|---|---|---|---|---|---|"
HEAD = "| key | values | default | unit | meaning |\n|---|---|---|---|---|"


def page() -> str:
    unions = {union.section: union for union in UNIONS}
    assert set(SECTIONS) == set(RunSpec.model_fields)
    parts = [OPENING]
    for name in SECTIONS:
        found = unions.get(name)
        parts.append(_union(found) if found is not None else _section(name))
    parts.append(AMENDMENTS)
    return "\n".join(parts)


def kinds() -> Iterator[tuple[str, str, type[Section]]]:
    """(section, kind or "", spec) of every table of the page."""
    unions = {union.section: union for union in UNIONS}
    for name in SECTIONS:
        if name in unions:
            yield from ((name, kind, spec) for kind, spec in _kinds_of(unions[name]))
        else:
            yield name, "", type(RunSpec.model_fields[name].default)


def _kinds_of(union: TaggedUnion[Any]) -> list[tuple[str, type[Section]]]:
    """The kinds of thinwire itself, without those that installed packages and tests register."""
    return [(kind, spec) for kind, spec in union if spec.__module__.startswith("thinwire_proto.")]


def keys(spec: type[Section]) -> dict[str, FieldInfo]:
    """The fields that a run file may have. `kind` and what the coordinator computes are left out."""
    computed = getattr(spec, "DERIVED", ())
    return {name: field for name, field in spec.model_fields.items() if name not in ("kind", *computed)}


def _section(name: str) -> str:
    spec = type(RunSpec.model_fields[name].default)
    rows = (_row(spec, key, ()) for key in keys(spec))
    return "\n".join([f"## [{name}]", "", _summary(spec), "", HEAD, *rows, ""])


def _union(union: TaggedUnion[Any]) -> str:
    default = RunSpec.model_fields[union.section].default.kind
    lines = [f"## [{union.section}]", "", f"The default of `kind` is `{default}`.", ""]
    if union.section == "model":
        lines += [
            "`preset` sets the keys of a size that is known by name. Every key that stands beside it overrides it.",
            "",
            *_presets(),
            "",
        ]
    lines += [f"* `{kind}`: {_about(spec)}" for kind, spec in _kinds_of(union)]
    lines += ["", HEAD_OF_KINDS, *_rows_of_kinds(union), ""]
    if local := sorted({key for _, spec in _kinds_of(union) for key in getattr(spec, "LOCAL", ())}):
        paths = " and ".join(f"`{key}`" for key in local)
        lines += [f"{paths}: a path relative to the folder of the run file. It is not part of the contract.", ""]
    return "\n".join(lines)


def _about(spec: type[Section]) -> str:
    """A kind in words, with the defaults of `demo` that it changes."""
    if not issubclass(spec, RuleSpec) or not spec.DEMO_DEFAULTS:
        return _summary(spec)
    changed = ", ".join(f"`demo.{key} = {toml(value)}`" for key, value in spec.DEMO_DEFAULTS.items())
    return f"{_summary(spec)} With it, the defaults are {changed}."


def _rows_of_kinds(union: TaggedUnion[Any]) -> Iterator[str]:
    """The keys of all kinds. A key that is the same in several kinds has one row."""
    kinds_of: dict[tuple[str, str], list[str]] = {}
    specs: dict[tuple[str, str], type[Section]] = {}
    for kind, spec in _kinds_of(union):
        for key in keys(spec):
            same = (key, _row(spec, key, ()))
            kinds_of.setdefault(same, []).append(kind)
            specs[same] = spec
    for (key, row), names in kinds_of.items():
        yield _row(specs[key, row], key, tuple(names))


def _presets() -> Iterator[str]:
    yield "| preset | kind | parameters | context | vocabulary |"
    yield "|---|---|---|---|---|"
    for name, spec in PRESETS.items():
        yield f"| `{name}` | `{spec.kind}` | {_parameters(spec):,} | {spec.context:,} | {spec.vocabulary:,} |"


def _parameters(spec: ModelSpec) -> int:
    count = 0
    for parameter in task_of(spec).manifest():
        size = 1
        for side in parameter.shape:
            size *= side
        count += size
    return count


@lru_cache
def descriptions(spec: type[Section]) -> dict[str, str]:
    """What the source says of each field, in the text below it."""
    found = {}
    for base in reversed([base for base in spec.__mro__ if issubclass(base, Section)]):
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(defined, ast.ClassDef)
        for field, text in pairwise(defined.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return found


def _row(spec: type[Section], name: str, kinds_with_it: tuple[str, ...]) -> str:
    """A row of a table. kinds_with_it: the kinds that have the key; empty in a section without kinds."""
    field = spec.model_fields[name]
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    of_kinds = (", ".join(f"`{kind}`" for kind in kinds_with_it),) if kinds_with_it else ()
    unit = str(extra.get("unit", ""))
    mark = "✎ " if is_amendable(extra) else ""
    text = mark + descriptions(spec)[name]
    cells = (f"`{name}`", *of_kinds, values(field), f"`{default_of(field)}`", unit, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def default_of(field: FieldInfo) -> str:
    """The default, as a run file would write it."""
    default = field.get_default(call_default_factory=True, validated_data={})
    return "required" if default is PydanticUndefined else toml(default)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }" if value else "{}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml(inner) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def values(field: FieldInfo) -> str:
    """The type of a field's values, in words, with its bounds."""
    return _kind_of_value(field.annotation) + _bounds(field)


def _kind_of_value(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{toml(value)}`" for value in inner)
    if origin in (Union, UnionType):
        return " or ".join(_kind_of_value(one) for one in inner if one is not NoneType)
    if origin in (tuple, list):
        return f"list of {_plural(inner[0])}"
    if origin is dict:
        return f"table of {_plural(inner[1])}"
    plain = {int: "integer", float: "number", bool: "`true`, `false`", str: "text"}
    return plain.get(annotation, "table")


def _plural(annotation: Any) -> str:
    return {"integer": "integers", "number": "numbers", "text": "texts"}.get(_kind_of_value(annotation), "values")


def _bounds(field: FieldInfo) -> str:
    low = high = length = ""
    for bound in field.metadata:
        if isinstance(bound, Ge):
            low = f"{_number(bound.ge)} or more"
        elif isinstance(bound, Gt):
            low = f"above {_number(bound.gt)}"
        elif isinstance(bound, Le):
            high = f"at most {_number(bound.le)}"
        elif isinstance(bound, Lt):
            high = f"below {_number(bound.lt)}"
        elif isinstance(bound, MaxLen):
            length = f"at most {_number(bound.max_length)} long"
        elif isinstance(bound, MinLen):
            length = length or f"at least {_number(bound.min_length)} long"
    if low.endswith(" or more") and high.startswith("at most "):
        low, high = f"{low.removesuffix(' or more')} to {high.removeprefix('at most ')}", ""
    return "".join(f", {words}" for words in (low, high, length) if words)


def _number(value: Any) -> str:
    if isinstance(value, int) and value >= 1 << 20 and value & (value - 1) == 0:
        return "2" + str(value.bit_length() - 1).translate(POWERS)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _summary(spec: type[Section]) -> str:
    """The first paragraph of the docstring, which says what the section or the kind is."""
    written = inspect.getdoc(spec) if spec.__doc__ else None
    return " ".join((written or "").partition("\n\n")[0].split())


if __name__ == "__main__":
    write_or_check("run-file.md", page(), "tools.run_reference")
