"""Reads run files, and explains their errors, with the line and a suggestion for each. Does not need torch."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.planning.planned import AMEND, PlannedError, planned, runs_of
from thinwire_proto.contract import DATA, MODELS, RunSpec, TaggedUnion
from thinwire_proto.contract.models.presets import PRESETS
from thinwire_proto.contract.run import UNIONS
from thinwire_proto.contract.unions import UNKNOWN_KIND
from thinwire_proto.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

read_toml = tomllib.loads
"""Raises ValueError if the text is not TOML."""
Document = dict[str, Any]
KeyPath = tuple[str, ...]
SYNTAX_LINE = re.compile(r"at line (\d+)")
TABLE = re.compile(r"\s*\[+([\w.\s\"'-]+)\]+\s*(#.*)?$")
AMEND_TABLE = re.compile(rf"\s*\[\[\s*{AMEND}\s*\]\]")
KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
UNION_OF = {union.section: union for union in UNIONS}


@dataclass(frozen=True)
class Problem:
    """Something wrong or unwise in a run file. line: from 1; None if it is about no line."""

    line: int | None
    key: str
    text: str
    is_error: bool = True

    def in_words(self, file: str) -> str:
        return f"{self.place(file)}: {'error' if self.is_error else 'warning'}: {self.named_text}"

    def place(self, file: str) -> str:
        return f"{file}:{self.line}" if self.line else file

    @property
    def named_text(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


@dataclass(frozen=True)
class CheckedFile:
    """The result of reading a run file. run: None if there are errors. planned: its amendments."""

    run: RunSpec | None
    planned: tuple[Order, ...]
    problems: tuple[Problem, ...]
    lines: Mapping[KeyPath, int]

    def line(self, *path: str) -> int | None:
        """The line of a key, or of the innermost table around it that the file has."""
        return line_of(self.lines, path)

    def line_of_text(self, section: str, text: str) -> int | None:
        """The line of the key that an error's text names, or that of the section."""
        return line_of_text(self.lines, (section,), text)


def read_run(path: Path) -> RunSpec:
    """Read a run file without its amendments. `model.preset` names a preset; other keys of [model] override it. Raises
    ConfigError."""
    return read_run_file(path)[0]


def read_run_file(path: Path) -> tuple[RunSpec, tuple[Order, ...]]:
    """Read a run file, and its amendments in the order of their steps. Raises ConfigError."""
    file = check_file(path)
    if file.run is None:
        raise ConfigError("; ".join(f"{one.place(str(path))}: {one.named_text}" for one in file.problems))
    return file.run, file.planned


def check_file(path: Path) -> CheckedFile:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        return _unread(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _unread(f"is not UTF-8: {error.reason} at byte {error.start}")
    try:
        document = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        found = SYNTAX_LINE.search(str(error))
        return _unread(f"is not TOML: {error}", int(found[1]) if found else None)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        return _unread(f"cannot be read: {error}")
    return _Check(document, text, path.parent).result()


def _unread(text: str, line: int | None = None) -> CheckedFile:
    return CheckedFile(None, (), (Problem(line, "", text),), {})


class _Check:
    def __init__(self, document: Document, text: str, folder: Path) -> None:
        self._document = dict(document)
        self._amendments = self._document.pop(AMEND, [])
        self._lines = key_lines(text)
        self._amend_lines = [number for number, line in enumerate(text.splitlines(), 1) if AMEND_TABLE.match(line)]
        self._folder = folder
        self._found: list[Problem] = []

    def result(self) -> CheckedFile:
        self._expand_preset()
        self._own_keys()
        run: RunSpec | None = None
        try:
            run = RunSpec.model_validate(self._document)
        except ValidationError as error:
            self._add_all(error)
        orders: tuple[Order, ...] = ()
        try:
            orders = tuple(planned(self._amendments))
            if run is not None:
                runs_of(run, orders)
        except PlannedError as error:
            line = dict(enumerate(self._amend_lines)).get(error.number)
            self._add((AMEND, error.key) if error.key else (AMEND,), str(error), line)
        if any(problem.is_error for problem in self._found):
            run = None
        order = sorted(self._found, key=lambda problem: (problem.line or 0, problem.key))
        in_turn = tuple(sorted(orders, key=lambda one: one.at or 0))
        return CheckedFile(run, in_turn, tuple(order), self._lines)

    def _add(self, path: KeyPath, text: str, line: int | None = None) -> None:
        self._found.append(Problem(line or line_of(self._lines, path), ".".join(path), text))

    def _expand_preset(self) -> None:
        model = self._document.get("model")
        if not isinstance(model, dict) or "preset" not in model:
            return
        name = model.pop("preset")
        if not isinstance(name, str) or name not in PRESETS:
            names = ", ".join(PRESETS)
            guess = did_you_mean(str(name), PRESETS)
            self._add(("model", "preset"), f"there is no preset {name!r}{guess}; choose one of {names}")
            return
        preset = PRESETS[name]
        if (kind := model.get("kind", preset.kind)) != preset.kind:
            self._add(
                ("model", "kind"), f"the preset {name} is of kind {preset.kind!r}, and this is {kind!r}; remove it"
            )
            return
        self._document["model"] = preset.model_dump(exclude=set(preset.LOCAL)) | model

    def _own_keys(self) -> None:
        """Refuse the keys that the coordinator computes, and make paths absolute."""
        unions: tuple[TaggedUnion[Any], ...] = (MODELS, DATA)
        for union in unions:
            name, section = union.section, self._document.get(union.section, {})
            spec = union.spec_of(section)
            if spec is None or not isinstance(section, dict):
                continue
            for key in spec.DERIVED:
                if section.pop(key, None) is not None and (name, key) in self._lines:
                    self._add((name, key), "computed by the coordinator; remove it")
            for key in spec.LOCAL:
                if isinstance(value := section.get(key), str) and value:
                    section[key] = str(self._folder.resolve() / value)

    def _add_all(self, error: ValidationError) -> None:
        for entry in error.errors():
            path = tuple(str(part) for part in entry["loc"])
            text = self._in_words(path, entry)
            self._add(path, text, line_of_text(self._lines, path, text) if entry["type"] == "value_error" else None)

    def _in_words(self, path: KeyPath, entry: Any) -> str:
        given, kind = entry["input"], entry["type"]
        if kind == "extra_forbidden":
            return f"there is no such {'section' if len(path) == 1 else 'key'}{self._nearest_key(path)}"
        if kind == UNKNOWN_KIND:
            names = entry["ctx"]["names"]
            guess = did_you_mean(str(given), names.split(", "))
            return f"there is no kind {given!r}{guess}; there are {names}"
        if kind == "value_error":
            return str(entry["ctx"]["error"])
        text = f"{entry['msg'][0].lower()}{entry['msg'][1:]}"
        shown = "" if isinstance(given, dict | BaseModel) else f" (it is {given!r:.80})"
        return f"{text}{shown}"

    def _nearest_key(self, path: KeyPath) -> str:
        """Which key was probably meant: in this section, in one of its other kinds, or in another section."""
        name = path[-1]
        if len(path) == 1:
            homes = [f"[{section}]" for section in RunSpec.model_fields if name in self._keys(section)]
            guess = did_you_mean(name, [*RunSpec.model_fields, f"[{AMEND}]"], "[{}]")
            return f"; the key belongs into {' or '.join(homes)}" if homes else guess
        section = path[0]
        if union := UNION_OF.get(section):
            kinds = [kind for kind, spec in union if name in spec.model_fields]
            if kinds:
                return f"; it is for {section}.kind = {', '.join(kinds)}"
        homes = [f"[{other}]" for other in RunSpec.model_fields if other != section and name in self._keys(other)]
        if homes and len(path) == 2:
            return f"; it belongs into {' or '.join(homes)}"
        return did_you_mean(name, self._keys(section))

    def _keys(self, section: str) -> list[str]:
        """The keys that a run file may have in a section, of the kind that it has."""
        union, given = UNION_OF.get(section), self._document.get(section, {})
        if union is None:
            return list(type(RunSpec.model_fields[section].default).model_fields)
        spec = union.spec_of(given)
        if spec is None:
            return ["kind"]
        keys = [key for key in spec.model_fields if key not in spec.DERIVED]
        return [*keys, "preset"] if section == "model" else keys


def key_lines(text: str) -> dict[KeyPath, int]:
    """The first line, from 1, of each table and key of a valid TOML file, by its full path.

    Python's parser does not tell them. Keys inside an inline table are not listed.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := TABLE.match(line):
            path = table = _path_of(header[1])
        elif key := KEY.match(line):
            path = table + _path_of(key[1])
        else:
            continue
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _path_of(dotted: str) -> KeyPath:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of a key, or that of the innermost table or key around it that the file has."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


def line_of_text(lines: Mapping[KeyPath, int], path: KeyPath, text: str) -> int | None:
    """The line of the first key of the file that a text about several keys names, or that of `path`."""
    for word in re.findall(r"[a-z_][\w.]*", text):
        named = tuple(word.rstrip(".").split("."))
        for candidate in (named, path + named):
            if len(candidate) > 1 and candidate in lines:
                return lines[candidate]
    return line_of(lines, path)


def did_you_mean(given: str, names: Iterable[str], form: str = "{}") -> str:
    """`; did you mean …?`, if one of the names is close; otherwise nothing."""
    near = difflib.get_close_matches(given, list(names), n=1)
    return f"; did you mean {form.format(near[0])}?" if near else ""
