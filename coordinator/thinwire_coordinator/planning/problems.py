"""Finds all errors of a run file at once, with the line and a suggestion for each. Does not need torch."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from thinwire_coordinator.planning.toml_lines import key_lines, line_of
from thinwire_proto.contract import DATA, MODELS, RuleSpec, RunSpec, Section, TaggedUnion
from thinwire_proto.contract.models.presets import PRESETS
from thinwire_proto.contract.run import UNIONS
from thinwire_proto.contract.unions import UNKNOWN_KIND

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Document = dict[str, Any]
KeyPath = tuple[str, ...]
SYNTAX_LINE = re.compile(r"at line (\d+)")
UNION_OF = {union.section: union for union in UNIONS}


@dataclass(frozen=True)
class Problem:
    """Something wrong or unwise in a run file. line: from 1; None if it is about no line."""

    line: int | None
    key: str
    text: str
    is_error: bool = True

    def in_words(self, file: str) -> str:
        place = f"{file}:{self.line}" if self.line else file
        word = "error" if self.is_error else "warning"
        return f"{place}: {word}: {self.key + ': ' if self.key else ''}{self.text}"


@dataclass(frozen=True)
class CheckedFile:
    """The result of reading a run file. run: None if there are errors."""

    run: RunSpec | None
    problems: tuple[Problem, ...]
    lines: Mapping[KeyPath, int]

    def line(self, *path: str) -> int | None:
        """The line of a key, or of the innermost table around it that the file has."""
        return line_of(self.lines, path)

    def line_of_text(self, section: str, text: str) -> int | None:
        """The line of the key that an error's text names, or that of the section."""
        return line_of_text(self.lines, (section,), text)


def check_file(path: Path) -> CheckedFile:
    """Read a run file and collect its errors."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        return _unread(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _unread(f"is not UTF-8: {error.reason} at byte {error.start}")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = SYNTAX_LINE.search(str(error))
        return _unread(f"is not TOML: {error}{_syntax_hint(text, found)}", int(found[1]) if found else None)
    return _Check(document, key_lines(text), path.parent).result()


def _unread(text: str, line: int | None = None) -> CheckedFile:
    return CheckedFile(None, (Problem(line, "", text),), {})


def _syntax_hint(text: str, found: re.Match[str] | None) -> str:
    lines = text.splitlines()
    if found is None or not 0 < int(found[1]) <= len(lines):
        return ""
    value = lines[int(found[1]) - 1].partition("=")[2].partition("#")[0].strip()
    return f'; a text needs quotes: "{value}"' if re.fullmatch(r"[A-Za-z][\w./-]*", value) else ""


class _Check:
    """The check of one file."""

    def __init__(self, document: Document, lines: dict[KeyPath, int], folder: Path) -> None:
        self._document = dict(document)
        self._lines = lines
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
        if any(problem.is_error for problem in self._found):
            run = None
        order = sorted(self._found, key=lambda problem: (problem.line or 0, problem.key))
        return CheckedFile(run, tuple(order), self._lines)

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
            kind = union.kind_of(section)
            if kind is None or not isinstance(section, dict):
                continue
            for key in kind.spec.DERIVED:
                if section.pop(key, None) is not None and (name, key) in self._lines:
                    self._add((name, key), "computed by the coordinator; remove it")
            for key in kind.spec.LOCAL:
                if isinstance(value := section.get(key), str) and value:
                    path = self._folder.resolve() / value
                    section[key] = str(path)
                    if not path.is_dir():
                        self._add((name, key), f"there is no folder {path}")

    def _add_all(self, error: ValidationError) -> None:
        wrong: dict[str, set[str]] = {}
        for entry in error.errors():
            path = tuple(str(part) for part in entry["loc"])
            if not path:
                continue
            text = self._in_words(path, entry)
            self._add(path, text, line_of_text(self._lines, path, text) if entry["type"] == "value_error" else None)
            wrong.setdefault(path[0], set()).update(path[1:2])
        for section, keys in wrong.items():
            self._hidden_relations(section, keys)
        self._relations(wrong)

    def _hidden_relations(self, section: str, wrong: set[str]) -> None:
        """Find errors between the keys of a section that has wrong keys, too. They are left out, and so is what could
        follow from their absence."""
        given = self._document.get(section)
        if not wrong or "kind" in wrong or not isinstance(given, dict):
            return
        known = self._keys(section)
        doubtful = wrong | {near for key in wrong for near in difflib.get_close_matches(key, known)}
        try:
            self._read(section, {key: value for key, value in given.items() if key not in wrong})
        except ValidationError as error:
            for entry in error.errors():
                text = self._in_words((section,), entry)
                if not entry["loc"] and not doubtful & set(re.findall(r"\w+", text)):
                    self._add((section,), text, line_of_text(self._lines, (section,), text))

    def _relations(self, wrong: Container[str]) -> None:
        """Check how sections fit together, those that are right by themselves. One error does not hide another."""
        sections: dict[str, Any] = {}
        for name in RunSpec.model_fields:
            if name not in wrong:
                sections[name] = self._read(name, self._document.get(name, {}))
        checks = (("rule", ("demo", "schedule")), ("data", ("model",)), ("exchange", ("demo", "round", "rule")))
        for name, others in checks:
            if name not in sections or not all(other in sections for other in others):
                continue
            try:
                sections[name].check(*(sections[other] for other in others))
            except ValueError as error:
                self._add((), str(error), line_of_text(self._lines, (name,), str(error)))

    def _read(self, name: str, given: Document) -> Section:
        """Read one section. Raises ValidationError."""
        if name in UNION_OF:
            return UNION_OF[name].read(given)
        rule = UNION_OF["rule"].kind_of(self._document.get("rule", {}))
        if name == "demo" and rule is not None and issubclass(rule.spec, RuleSpec):
            given = rule.spec.with_defaults(given)
        spec: type[Section] = type(RunSpec.model_fields[name].default)
        return spec.model_validate(given)

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
        return f"{text}{shown}{self._value_hint(path, entry)}"

    def _nearest_key(self, path: KeyPath) -> str:
        """Which key was probably meant: in this section, in one of its other kinds, or in another section."""
        name = path[-1]
        if len(path) == 1:
            homes = [f"[{section}]" for section in RunSpec.model_fields if name in self._keys(section)]
            guess = did_you_mean(name, RunSpec.model_fields, "[{}]")
            return f"; the key belongs into {' or '.join(homes)}" if homes else guess
        section = path[0]
        if union := UNION_OF.get(section):
            kinds = [kind.name for kind in union if name in kind.spec.model_fields]
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
        kind = union.kind_of(given)
        if kind is None:
            return ["kind"]
        keys = [key for key in kind.spec.model_fields if key not in kind.spec.DERIVED]
        return [*keys, "preset"] if section == "model" else keys

    def _value_hint(self, path: KeyPath, entry: Any) -> str:
        given, kind = entry["input"], entry["type"]
        if kind == "literal_error" and isinstance(given, str):
            return did_you_mean(given, self._choices(path), '"{}"')
        if kind in ("int_type", "float_type") and isinstance(given, str):
            return "; write the number without quotes"
        if kind == "int_type" and isinstance(given, float) and given.is_integer():
            return f"; write {int(given)}"
        if kind == "bool_type":
            return "; write true or false"
        return ""

    def _choices(self, path: KeyPath) -> list[str]:
        section = path[0]
        union = UNION_OF.get(section)
        kind = union.kind_of(self._document.get(section, {})) if union else None
        spec: type[BaseModel] = kind.spec if kind else type(RunSpec.model_fields[section].default)
        field = spec.model_fields.get(path[-1])
        if field is None or get_origin(field.annotation) is not Literal:
            return []
        return [choice for choice in get_args(field.annotation) if isinstance(choice, str)]


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
