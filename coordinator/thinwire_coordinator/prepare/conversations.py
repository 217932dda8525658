"""Finds the conversation in a row of data, or the two of a preference, in any of the usual layouts, and writes it in
that of OpenAI."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

MESSAGES = ("messages", "conversations", "conversation")
"""Keys of lists of turns, in OpenAI's layout (`role`, `content`) or ShareGPT's (`from`, `value`)."""
PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("input", "output"),
)
"""Keys of a prompt and its response. Beside an `instruction`, Alpaca's layout has more of the prompt in `input`."""
RESPONSES = ("chosen", "rejected")
"""Keys of the two responses of a preference, or of whole conversations with the same beginning."""
PROMPTS = ("prompt", "instruction", "question", "query", "input")
"""Keys of the prompt of a preference."""
KEYS = frozenset((*MESSAGES, *(key for pair in PAIRS for key in pair), *RESPONSES, "system", "tools"))
"""Every key that a conversation may be read from."""
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "chatgpt", "bot", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response", "ipython"), "tool"),
}
"""The role of each name in data."""
ASSISTANT = "assistant"


class LeftOut(ValueError):
    """A conversation that is read, and has nothing to learn from. count: the field of `Counts` that has it."""

    def __init__(self, count: str, text: str) -> None:
        super().__init__(text)
        self.count = count


@dataclass(frozen=True)
class Conversation:
    """messages: turns with `role` and `content`, and what else they have, such as `tool_calls`. tools: JSON schemas."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Preference:
    """Two conversations, of which the first is better. shared: how many messages at their beginnings are the same."""

    chosen: Conversation
    rejected: Conversation
    shared: int


@dataclass(frozen=True)
class Rendered:
    """The text of a conversation. counts: the ranges of its characters that count, in order. rejected: of a preference,
    whose chosen conversation this is."""

    text: str
    counts: tuple[tuple[int, int], ...]
    rejected: Rendered | None = None

    @property
    def whole(self) -> str:
        """The text, and that of the rejected conversation."""
        return self.text + (self.rejected.text if self.rejected else "")

    def __len__(self) -> int:
        return len(self.whole)


def has_conversation(row: Mapping[str, Any]) -> bool:
    return (
        has_preference(row)
        or any(key in row for key in MESSAGES)
        or any(one in row and other in row for one, other in PAIRS)
    )


def has_preference(row: Mapping[str, Any]) -> bool:
    return all(key in row for key in RESPONSES)


def preference_of(row: Mapping[str, Any]) -> Preference:
    """The preference of a row. Raises LeftOut if a response is empty, or both are the same, and ValueError, which says
    what is wrong."""
    prompt, others = _prompt_of(row), {key: row.get(key) for key in ("system", "tools")}
    chosen, rejected = (conversation_of({MESSAGES[0]: _after(prompt, key, row[key])} | others) for key in RESPONSES)
    both = zip(chosen.messages, rejected.messages, strict=False)
    shared = sum(1 for _ in takewhile(lambda two: two[0] == two[1], both))
    if shared == len(chosen.messages) == len(rejected.messages):
        raise LeftOut("equal", "has the same response twice")
    for one, key in zip((chosen, rejected), RESPONSES, strict=True):
        if not any(message["role"] == ASSISTANT for message in one.messages[shared:]):
            raise LeftOut("no_response", f"`{key}` has no response of its own")
    return Preference(chosen, rejected, shared)


def _prompt_of(row: Mapping[str, Any]) -> Any:
    """The prompt of a preference: a text, or messages, of which there may be none."""
    key = next((key for key in (*PROMPTS, *MESSAGES[1:]) if row.get(key) is not None), None)
    prompt = [] if key is None else row[key]
    if key == "instruction" and isinstance(prompt, str) and isinstance(more := row.get("input"), str) and more:
        prompt = f"{prompt}\n\n{more}"
    return prompt


def _after(prompt: Any, key: str, response: Any) -> list[Any]:
    """The conversation of a prompt and a response: a text, a message or messages, which may have the prompt already."""
    if response is None or isinstance(response, str | Mapping):
        if not prompt:
            raise ValueError(f"`{key}` is one response, and there is no prompt ({', '.join(PROMPTS)})")
        is_message = isinstance(response, Mapping)
        response = [response if is_message else {"role": ASSISTANT, "content": response or ""}]
    if not isinstance(response, Sequence):
        raise ValueError(f"`{key}` is neither text nor messages but {type(response).__name__}")
    if isinstance(prompt, str):
        return [*response] if len(response) > 1 else [{"role": "user", "content": prompt}, *response]
    if not isinstance(prompt, Sequence):
        raise ValueError(f"the prompt is neither text nor messages but {type(prompt).__name__}")
    return [*prompt, *response]


def conversation_of(row: Mapping[str, Any]) -> Conversation:
    """The conversation of a row. Raises LeftOut if a response is empty, and ValueError, which says what is wrong."""
    turns = next((row[key] for key in MESSAGES if row.get(key) is not None), None)
    if turns is None:
        turns = _of_pair(row)
    if isinstance(turns, str):
        turns = _parsed(turns, "the messages")
    if not isinstance(turns, Sequence) or not turns:
        raise LeftOut("no_response", "has no messages")
    messages = [_message(number, turn) for number, turn in enumerate(turns, 1)]
    system = row.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    responses = [message for message in messages if message["role"] == ASSISTANT]
    if not responses:
        raise LeftOut("no_response", "has no turn of the assistant")
    for message in responses:
        if not _says_something(message):
            raise LeftOut("no_response", "has an empty response")
    return Conversation(messages, _tools(row.get("tools")))


def _of_pair(row: Mapping[str, Any]) -> list[Any]:
    found = [(row[one], row[other]) for one, other in PAIRS if row.get(one) is not None and other in row]
    if not found:
        return []
    prompt, response = found[0]
    if isinstance(prompt, list) and isinstance(response, list):
        return [*prompt, *response]
    if isinstance(prompt, str) and "instruction" in row and isinstance(more := row.get("input"), str) and more:
        prompt = f"{prompt}\n\n{more}"
    return [{"role": "user", "content": prompt}, {"role": ASSISTANT, "content": "" if response is None else response}]


def _message(number: int, turn: Any) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise ValueError(f"message {number} is not an object but {type(turn).__name__}")
    name = _first_of(turn, "role", "from")
    if name is None:
        raise ValueError(f"message {number} has no role (`role` or `from`)")
    if not isinstance(name, str) or name.lower() not in ROLES:
        raise ValueError(f"message {number} has the role {name!r}, which is none of {', '.join(sorted(ROLES))}")
    others = {key: value for key, value in turn.items() if key not in {"role", "from", "value"} and value is not None}
    content = _first_of(turn, "content", "value")
    if content is None and (ROLES[name.lower()] != ASSISTANT or not others):
        content = ""
    if content is not None and not isinstance(content, str | list):
        raise ValueError(f"message {number} has a content that is not text but {type(content).__name__}")
    return {**others, "role": ROLES[name.lower()], "content": content}


def _first_of(turn: Mapping[str, Any], *keys: str) -> Any:
    """The first value that is there: Arrow fills in None where other rows have a key."""
    return next((turn[key] for key in keys if turn.get(key) is not None), None)


def _says_something(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return bool((content or "").strip()) or bool(message.get("tool_calls"))


def _tools(found: Any) -> list[Any] | None:
    """Some data sets have the list of tools as a text in JSON."""
    if isinstance(found, str) and found.strip():
        found = _parsed(found, "`tools`")
    if found and not isinstance(found, list):
        raise ValueError(f"`tools` is not a list but {type(found).__name__}")
    return found or None


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: is not JSON: {error}") from None
