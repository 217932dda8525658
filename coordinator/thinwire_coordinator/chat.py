"""Writes a message as the prompt that a chat model was trained on, by the template of its tokenizer."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any, NoReturn

from thinwire_proto.errors import ConfigError
from thinwire_proto.task import Tokenizer

CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
DEFAULT = "default"
"""The name of the template that is used where a tokenizer has several."""
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def chat_prompt(tokenizer: Tokenizer, message: str) -> str:
    """The prompt for an answer to a message. Raises ConfigError if the tokenizer has no chat template, or a broken one.

    The template comes from the run's data and is run in jinja's sandbox, as in transformers: it reaches nothing but
    the message.
    """
    files = tokenizer.files()
    config = _config(files.get(CONFIG_FILE, b"{}"))
    template = _template(files, config)
    from jinja2 import TemplateError  # noqa: PLC0415 - only where there is a chat
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    special = {name: _word(config.get(name)) for name in SPECIAL}
    try:
        messages = [{"role": "user", "content": message}]
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **special)
    except (TemplateError, TypeError, ValueError) as error:
        raise ConfigError(f"--chat: the chat template of the tokenizer fails: {error}") from None


def _config(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"--chat: the tokenizer's {CONFIG_FILE} is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _template(files: dict[str, bytes], config: dict[str, Any]) -> str:
    if TEMPLATE_FILE in files:
        return files[TEMPLATE_FILE].decode(errors="replace")
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


def _now(form: str) -> str:
    return datetime.now(timezone.utc).strftime(form)
