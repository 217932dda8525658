"""Options of a program that environment variables can set, too: each is declared once, as a field of a class.

An option on the command line wins over its variable, and the variable over the default. An empty variable counts as
not set.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from thinwire_proto.errors import ConfigError

PREFIX = "THINWIRE_"


class Options(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True)


Found = TypeVar("Found", bound=Options)


def option(
    help: str, default: Any = ..., *, metavar: str = "", shown: str = "", positional: bool = False, **limits: Any
) -> Any:
    """A field of an Options class. `shown`: the default in words; `limits`: as of pydantic's Field."""
    extra: dict[str, Any] = {"metavar": metavar, "shown": shown, "positional": positional}
    return Field(default, description=help, json_schema_extra=extra, **limits)


def host_and_port(text: str, host: str = "", port_min: int = 0) -> tuple[str, int]:
    """HOST:PORT, or PORT alone if there is a default for `host`. Raises ValueError."""
    found, colon, port = text.rpartition(":")
    found = found if colon else host
    if not (found and port.isdecimal() and port_min <= int(port) <= 65535):
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:7700")
    return found, int(port)


def _checked(text: str) -> str:
    host_and_port(text)
    return text


def _checked_remote(text: str) -> str:
    host_and_port(text, port_min=1)
    return text


Address = Annotated[str, AfterValidator(_checked)]
"""HOST:PORT to listen on; port 0 is a free one."""
RemoteAddress = Annotated[str, AfterValidator(_checked_remote)]
"""HOST:PORT of somebody else."""


def flag(options: type[Options], name: str) -> str:
    """How the option is written; a positional argument is called by what stands for it."""
    extra = _extra(options.model_fields[name])
    return str(extra["metavar"]) if extra["positional"] else "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return PREFIX + name.upper()


def default_of(field: FieldInfo) -> str:
    """In words; empty if there is none."""
    shown = _extra(field)["shown"]
    return shown if shown or field.default is None or field.is_required() else str(field.default)


def metavar_of(field: FieldInfo) -> str:
    """What stands for the value in a help text."""
    choices = _choices(field)
    return "{" + ",".join(choices) + "}" if choices else _extra(field)["metavar"]


def add_options(parser: argparse._ActionsContainer, options: type[Options], *names: str) -> None:
    """Add an option for each of these fields, or for all. What is not given is not in the parsed arguments."""
    for name in names or tuple(options.model_fields):
        add_option(parser, options, name)


def add_option(parser: argparse._ActionsContainer, options: type[Options], name: str, *aliases: str) -> None:
    """`aliases`: other ways to write it."""
    field = options.model_fields[name]
    positional = _extra(field)["positional"]
    default = default_of(field)
    notes = [variable(name), f"default {default}"] if default else [variable(name)]
    given: dict[str, Any] = {"nargs": "?"} if positional else {"dest": name}
    given["choices" if _choices(field) else "metavar"] = _choices(field) or metavar_of(field)
    text = f"{field.description} ({'; '.join(notes)})".replace("%", "%%")
    flags = [name] if positional else [flag(options, name), *aliases]
    parser.add_argument(*flags, default=argparse.SUPPRESS, help=text, **given)


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"{parser.prog} {version('thinwire')}")


def read_options(options: type[Found], arguments: argparse.Namespace) -> Found:
    """Raises ConfigError that names the option or the variable that is wrong."""
    given = {name: value for name, value in vars(arguments).items() if name in options.model_fields}
    try:
        return options(**given)
    except ValidationError as error:
        raise ConfigError("; ".join(_in_words(problem, options, given) for problem in error.errors())) from None


def _in_words(problem: Any, options: type[Options], given: dict[str, Any]) -> str:
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        return f"{flag(options, name)} is missing; or set {variable(name)}"
    text = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] != "value_error":
        text = f"{text[0].lower()}{text[1:]}, not {problem['input']!r}"
    return f"{flag(options, name) if name in given else variable(name)}: {text}"


def _extra(field: FieldInfo) -> dict[str, Any]:
    assert isinstance(field.json_schema_extra, dict)
    return field.json_schema_extra


def _choices(field: FieldInfo) -> tuple[str, ...]:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
