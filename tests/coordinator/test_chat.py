"""Tests the prompts that chat templates make."""

from __future__ import annotations

import json

import pytest

from thinwire_coordinator.chat import chat_prompt
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.errors import ConfigError

CHATML = """{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + eos_token + '\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
EXPECTED = "<|im_start|>user\nHi {{ there }}</s>\n<|im_start|>assistant\n"


class Chatting(ByteTokenizer):
    """A tokenizer with the files of a chat model."""

    def __init__(self, config: object, template: str | None = None) -> None:
        self._files = {"tokenizer_config.json": json.dumps(config).encode()}
        if template is not None:
            self._files["chat_template.jinja"] = template.encode()

    def files(self) -> dict[str, bytes]:
        return self._files


@pytest.mark.parametrize(
    "tokenizer",
    [
        Chatting({"eos_token": "</s>", "chat_template": CHATML}),
        Chatting({"eos_token": {"content": "</s>"}, "chat_template": CHATML}),
        Chatting({"eos_token": "</s>", "chat_template": "another"}, CHATML),
        Chatting({"eos_token": "</s>", "chat_template": [{"name": "default", "template": CHATML}]}),
    ],
    ids=["in the config", "token as object", "in a file", "one of several"],
)
def test_a_message_becomes_the_prompt_of_the_template(tokenizer: Chatting) -> None:
    assert chat_prompt(tokenizer, "Hi {{ there }}") == EXPECTED


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('only pairs') }}", "only pairs"),
        ("{% if %}", "fails"),
        ("{{ messages[0].nothing.more }}", "fails"),
        ("{{ messages.__class__.__mro__ }}", "fails: .*unsafe"),
        ("{{ messages.append(1) }}", "fails: .*unsafe"),
        ("{{ 1 // 0 }}", "fails: .*zero"),
        ("{{ 'a' * 10 ** 15 }}", "fails: MemoryError"),
    ],
)
def test_a_broken_or_hostile_template_is_an_error(template: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        chat_prompt(Chatting({"chat_template": template}), "Hi")


def test_without_a_template_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="no chat template; give a text to continue with --prompt"):
        chat_prompt(ByteTokenizer(), "Hi")
