"""Renders conversations with a chat template, and finds which parts of the text count: the turns of the assistant.

A template is Jinja, in the sandbox of transformers. It runs here alone: a node gets tokens and marks.

A template may mark itself what the assistant writes, with `{% generation %}`. In another one, a turn is what the text
gains when the turn is added to the messages before it and to the prompt for it (`add_generation_prompt`). That holds
only if the text of a shorter conversation begins that of a longer one, so each beginning is compared. A template that
rewrites earlier turns, such as one that drops their reasoning, needs the mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from thinwire_coordinator.prepare.conversations import ASSISTANT, Conversation, LeftOut, Preference, Rendered
from thinwire_coordinator.prepare.tokenizing import TokenizerFiles
from thinwire_proto.data.json_tokenizer import CONFIG_FILE, JsonTokenizer
from thinwire_proto.data.manifest import CHAT_TEMPLATE_FILE
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra

OLDER_FILE = "chat_template.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
KEY = "chat_template"
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
TODAY = datetime(2024, 7, 26)
"""The date for templates that ask for it: with that of today, each day would make other shards."""
TEMPLATE_BYTES_MAX = 1 << 20


class ChatTemplate:
    """source: of the template. words: the special tokens by their names, such as `eos_token`."""

    def __init__(self, source: str, words: Mapping[str, str]) -> None:
        self.source = source
        self._words = dict(words)
        self._marks_itself = bool(GENERATION.search(source))
        library = import_extra("transformers.utils.chat_template_utils", "hf")
        self._render = library.render_jinja_template
        try:
            library._compile_jinja_template(source).globals["strftime_now"] = TODAY.strftime  # the one that it renders
        except Exception as error:  # noqa: BLE001 - jinja2's errors, and those of what a template calls
            raise ConfigError(f"the chat template is not one: {error}; give another with --chat-template") from None

    def render(self, found: Conversation | Preference) -> Rendered:
        """Raises LeftOut if the template raises, or does not let the turns of the assistant be found that count. Those
        of a preference are the ones after the messages that are the same."""
        if isinstance(found, Conversation):
            return self._rendered(found, 0)
        chosen, rejected = (self._rendered(each, found.shared) for each in (found.chosen, found.rejected))
        if chosen.text == rejected.text:
            raise LeftOut("equal", "the chat template writes both responses in the same way")
        return replace(chosen, rejected=rejected)

    def _rendered(self, conversation: Conversation, first: int) -> Rendered:
        """first: the message from which on turns of the assistant count."""
        if self._marks_itself:
            text, counts = self._text(conversation, len(conversation.messages))
            if any(message["role"] == ASSISTANT for message in conversation.messages[:first]):
                counts = counts[len(self._text(conversation, first)[1]) :]
        else:
            text, counts = self._by_prefixes(conversation, first)
        if not any(text[begin:end].strip() for begin, end in counts):
            raise LeftOut("unrendered", "the chat template leaves out what the assistant says")
        return Rendered(text, tuple(counts))

    def _by_prefixes(self, conversation: Conversation, first: int) -> tuple[str, list[tuple[int, int]]]:
        text, counts = self._text(conversation, len(conversation.messages))[0], []
        for number, message in enumerate(conversation.messages):
            if message["role"] != ASSISTANT or number < first:
                continue
            before, after = (self._text(conversation, number + turn, prompt=not turn)[0] for turn in (0, 1))
            if not (text.startswith(after) and after.startswith(before)):
                raise LeftOut(
                    "unrendered",
                    f"the chat template writes message {number + 1} in another way when others follow, so it cannot be "
                    "told what counts; mark that in the template with {% generation %}",
                )
            counts.append((len(before), len(after)))
        return text, counts

    def _text(
        self, conversation: Conversation, messages: int, *, prompt: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text of the first messages, and what the template itself marks in it. prompt: for the next response."""
        try:
            texts, found = self._render(
                conversations=[conversation.messages[:messages]],
                tools=conversation.tools,
                chat_template=self.source,
                return_assistant_tokens_mask=self._marks_itself,
                add_generation_prompt=prompt,
                **self._words,
            )
        except Exception as error:  # noqa: BLE001 - whatever a template does
            raise LeftOut("unrendered", f"the chat template raises: {error}") from None
        return texts[0], (list(found[0]) if self._marks_itself else [])


def find_template(path: Path | None, files: TokenizerFiles | None) -> ChatTemplate | None:
    """The template of a file, or that of a tokenizer's folder; None if there is none. Raises ConfigError."""
    source = _of_file(path) if path is not None else _of_tokenizer(files.files if files is not None else {})
    return None if source is None else ChatTemplate(source, _words(files))


def with_template(files: Mapping[str, bytes], template: ChatTemplate) -> dict[str, bytes]:
    """The files of a tokenizer whose template is this one: the one that transformers takes first."""
    return {name: data for name, data in files.items() if name != OLDER_FILE} | {
        CHAT_TEMPLATE_FILE: template.source.encode()
    }


def _of_file(path: Path) -> str:
    try:
        data = path.read_bytes()
        if len(data) > TEMPLATE_BYTES_MAX:
            raise ConfigError(f"--chat-template: {path}: is larger than {TEMPLATE_BYTES_MAX:,} bytes")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--chat-template: {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--chat-template: {path}: is not text in UTF-8") from None


def _of_tokenizer(files: Mapping[str, bytes]) -> str | None:
    if CHAT_TEMPLATE_FILE in files:
        try:
            return files[CHAT_TEMPLATE_FILE].decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ConfigError(f"--tokenizer: its {CHAT_TEMPLATE_FILE} is not text in UTF-8") from None
    for name in (OLDER_FILE, CONFIG_FILE):
        found = _read(files, name).get(KEY)
        if isinstance(found, list):  # several, by name
            named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
            found = named.get("default")
        if isinstance(found, str):
            return found
    return None


def _words(files: TokenizerFiles | None) -> dict[str, str]:
    """The special tokens by their names, as transformers gives them to templates."""
    if files is None:
        return {}
    words: dict[str, str] = {}
    if files.end is not None and (word := JsonTokenizer(files.path, None).library.id_to_token(files.end)) is not None:
        words["eos_token"] = word
    for name in (SPECIAL_TOKENS_FILE, CONFIG_FILE):
        for key, word in _read(files.files, name).items():
            content = word.get("content") if isinstance(word, dict) else word
            if key.endswith("_token") and isinstance(content, str):
                words[key] = content
    return words


def _read(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        found: Any = from_json(files.get(name, b"{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
