"""Program options that can also be set by environment variables. Each is declared once, as a field of a class.

An option on the command line overrides its variable, and the variable overrides the default. An empty variable counts
as not set. Each program has a prefix of its own, so that a variable means one thing.
"""

from __future__ import annotations

import argparse
import os
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import shtab
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from thinwire_proto.errors import UsageError

THREADS_MAX = 1024
"""CPU threads of one program. Far more than that, and the system refuses to start them, which ends the process."""
IN_WORDS = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "string_type": "text",
    "bool_parsing": "true or false",
}
"""In words, by pydantic's type of error: pydantic's own text is about parsing."""


class Options(BaseModel):
    """The base class of all option classes. PREFIX: of the variables; empty where options have none."""

    PREFIX: ClassVar[str] = ""
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


Found = TypeVar("Found", bound=Options)


def option(
    help: str,
    default: Any = ...,
    *,
    metavar: str = "",
    shown: str = "",
    positional: bool = False,
    has_variable: bool = True,
    **limits: Any,
) -> Any:
    """Declare a field of an Options class. shown: the default in words. limits: arguments of pydantic's Field."""
    extra: dict[str, Any] = {"metavar": metavar, "shown": shown}
    extra |= {"positional": positional, "has_variable": has_variable}
    return Field(default, description=help, json_schema_extra=extra, **limits)


LogFormat = Literal["text", "json"]


def log_format_option() -> Any:
    return option("text, or one JSON object per line", "text")


def threads_option(shown: str, *, has_variable: bool = True) -> Any:
    """Declare the option of CPU threads. shown: the number without it, in words."""
    return option("CPU threads", None, metavar="N", ge=1, le=THREADS_MAX, shown=shown, has_variable=has_variable)


def host_and_port(text: str, host: str = "", port_min: int = 0) -> tuple[str, int]:
    """Parse HOST:PORT, or PORT alone if `host` gives a default. Raises ValueError."""
    found, colon, port = text.rpartition(":")
    found = found if colon else host
    if not (found and port.isdecimal() and port_min <= int(port) <= 65535):
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:7700")
    return found, int(port)


def _checked(text: str) -> str:
    host_and_port(text)
    return text


Address = Annotated[str, AfterValidator(_checked)]
"""HOST:PORT to listen on; port 0 picks a free port."""


def flag(options: type[Options], name: str) -> str:
    """The option as written on the command line; the metavar of a positional argument."""
    extra = _extra(options.model_fields[name])
    return str(extra["metavar"]) if extra["positional"] else "--" + name.replace("_", "-")


def variable(options: type[Options], name: str) -> str:
    """The environment variable of an option; empty if it has none."""
    has_one = options.PREFIX and _extra(options.model_fields[name])["has_variable"]
    return options.PREFIX + name.upper() if has_one else ""


def default_of(field: FieldInfo) -> str:
    """The default in words; empty if there is none. A flag has none: it is off unless it is given."""
    shown = _extra(field)["shown"]
    if field.annotation is bool and not shown:
        return ""
    return shown if shown or field.default is None or field.is_required() else str(field.default)


def metavar_of(field: FieldInfo) -> str:
    """The placeholder for the value in a help text."""
    choices = _choices(field)
    return "{" + ",".join(choices) + "}" if choices else _extra(field)["metavar"]


def add_options(parser: argparse._ActionsContainer, options: type[Options], *names: str) -> None:
    """Add an option for each named field, or for all. Options not given are absent from the parsed arguments."""
    for name in names or tuple(options.model_fields):
        add_option(parser, options, name)


def add_option(parser: argparse._ActionsContainer, options: type[Options], name: str) -> None:
    """Add one option."""
    field = options.model_fields[name]
    positional = _extra(field)["positional"]
    default = default_of(field)
    notes = [note for note in (variable(options, name), default and f"default {default}") if note]
    given: dict[str, Any] = {"nargs": "?"} if positional else {"dest": name}
    if field.annotation is bool:
        given["action"] = "store_true"
    else:
        given["choices" if _choices(field) else "metavar"] = _choices(field) or metavar_of(field)
    text = (f"{field.description} ({'; '.join(notes)})" if notes else f"{field.description}").replace("%", "%%")
    flags = [name] if positional else [flag(options, name)]
    parser.add_argument(*flags, default=argparse.SUPPRESS, help=text, **given)


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Add what each program has: its version, and the completion of its command line."""
    shtab.add_argument_to(parser, "--print-completion", help="print a script that completes this program's commands")
    parser.add_argument("--version", action="version", version=f"{parser.prog} {version('thinwire')}")


def read_options(options: type[Found], arguments: argparse.Namespace) -> Found:
    """Read options from arguments and variables. Raises UsageError, which names the wrong option or variable."""
    given = {name: value for name, value in vars(arguments).items() if name in options.model_fields}
    set_outside = {name: os.environ.get(variable(options, name), "") for name in options.model_fields}
    try:
        return options(**{name: value for name, value in set_outside.items() if value} | given)
    except ValidationError as error:
        raise UsageError("; ".join(_in_words(problem, options, given) for problem in error.errors())) from None


def _in_words(problem: Any, options: type[Options], given: dict[str, Any]) -> str:
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        return f"{flag(options, name)} is missing; or set {variable(options, name)}"
    text = str(problem["msg"]).removeprefix("Value error, ")
    if wanted := IN_WORDS.get(problem["type"]):
        text = f"must be {wanted}, not {problem['input']!r}"
    elif problem["type"] != "value_error":
        text = f"{text[0].lower()}{text[1:]}, not {problem['input']!r}"
    return f"{flag(options, name) if name in given else variable(options, name)}: {text}"


def _extra(field: FieldInfo) -> dict[str, Any]:
    assert isinstance(field.json_schema_extra, dict)
    return field.json_schema_extra


def _choices(field: FieldInfo) -> tuple[str, ...]:
    """Of a literal, or of an optional one."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
