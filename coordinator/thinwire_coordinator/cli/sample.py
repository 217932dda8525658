"""The command `thinwire-coordinator sample`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic_core import from_json

from thinwire_common.program import print_pieces
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.data.json_tokenizer import CONFIG_FILE
from thinwire_proto.data.manifest import CHAT_TEMPLATE_FILE
from thinwire_proto.errors import ConfigError
from thinwire_proto.generation import Sampling, first_prompt, generate, prompt_tokens, text_of, tokenizer_of
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import Tokenizer, task_of

if TYPE_CHECKING:
    from jinja2.parser import Parser
    from jinja2.sandbox import SandboxedEnvironment


def sample(state_dir: Path, step: int | None, prompt: str | None, chat: str | None, sampling: Sampling) -> None:
    """Print what the model of a step writes, as it comes: after a prompt, which is printed first, or as the answer to
    the message `chat`. Raises ThinwireError."""
    state = open_state(state_dir, read_only=True)
    model = Stateless(task_of(state.contract.model).model("cpu", state.blobs))
    tokenizer = tokenizer_of(model, state.data)
    if tokenizer is None:
        raise ConfigError(f"a model of kind {state.contract.model.kind!r} generates no text from these data")
    if prompt is None:
        prompt = first_prompt(tokenizer)
    tokens = prompt_tokens(tokenizer, prompt if chat is None else chat_prompt(tokenizer, chat))
    replica = kind_of(state.contract).model_at(state, step)
    drawn = generate(model, replica.tensors, tokens, sampling, tokenizer.end)
    print_pieces(chain([prompt] if chat is None else [], text_of(tokenizer, tokens, drawn)))


DEFAULT = "default"
"""The name of the template that is used where a tokenizer has several."""
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def chat_prompt(tokenizer: Tokenizer, message: str) -> str:
    """The prompt for an answer to a message. Raises ConfigError if the tokenizer has no chat template, or a broken one.

    The template comes from the run's data and is run in jinja's sandbox, as in transformers: it reaches nothing but
    the message. It has the same tags, filters and variables as there.
    """
    files = tokenizer.files()
    config = _config(files.get(CONFIG_FILE, b"{}"))
    template = _template(files, config)
    from jinja2 import TemplateError  # noqa: PLC0415 - only where there is a chat

    special = {name: _word(config.get(name)) for name in SPECIAL}
    given = {"tools": None, "documents": None, "add_generation_prompt": True} | special
    try:
        return _environment().from_string(template).render(messages=[{"role": "user", "content": message}], **given)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, MemoryError, RecursionError) as error:
        raise ConfigError(
            f"--chat: the chat template of the tokenizer fails: {str(error) or type(error).__name__}"
        ) from None


def _environment() -> SandboxedEnvironment:
    """The sandbox for templates, with what transformers adds to jinja (`_cached_compile_jinja_template` there)."""
    from jinja2 import nodes  # noqa: PLC0415
    from jinja2.ext import Extension, LoopControlExtension  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Generation(Extension):
        """{% generation %} … {% endgeneration %} marks what the model wrote; the text in it stays."""

        tags = {"generation"}  # noqa: RUF012 - as jinja declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

        def _written(self, caller: Callable[[], str]) -> str:
            return caller()

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, LoopControlExtension]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment


def _config(data: bytes) -> dict[str, Any]:
    try:
        found = from_json(data)
    except ValueError as error:
        raise ConfigError(f"--chat: the tokenizer's {CONFIG_FILE} is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _template(files: dict[str, bytes], config: dict[str, Any]) -> str:
    if CHAT_TEMPLATE_FILE in files:
        return files[CHAT_TEMPLATE_FILE].decode(errors="replace")
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}.get(DEFAULT)
    if isinstance(found, str):
        return found
    raise ConfigError("--chat: the tokenizer of this run has no chat template; give a text to continue with --prompt")


def _word(token: object) -> str:
    """A special token: a string, or an object with its content."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _refuse(text: str) -> NoReturn:
    from jinja2 import TemplateError  # noqa: PLC0415

    raise TemplateError(text)


def _json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter would write < as \\u003c, for pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now(timezone.utc).strftime(form)
