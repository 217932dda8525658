"""How chat templates make prompts, how tokens are drawn from a model's logits, and how they become text."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from torch import Tensor

from support.small import random_replica, small_contract
from thinwire_coordinator.cli.sample import chat_prompt
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.errors import ConfigError
from thinwire_proto.generation import Sampling, draw, generate, text_of
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import task_of

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
BYTES = ByteTokenizer()


def small_model() -> tuple[Stateless, dict[str, Tensor]]:
    contract = small_contract()
    return Stateless(task_of(contract.model).model("cpu")), random_replica(contract).tensors


def drawn(sampling: Sampling, count: int = 2000) -> Counter[int]:
    generator = torch.Generator().manual_seed(sampling.seed)
    return Counter(draw(LOGITS, sampling, generator) for _ in range(count))


@pytest.mark.parametrize(("top_p", "likely"), [(1.0, 4), (0.94, 3), (0.79, 2), (0.5, 1), (0.01, 1)])
def test_top_p_draws_from_the_likeliest_tokens_only(top_p: float, likely: int) -> None:
    assert set(drawn(Sampling(1, 1.0, top_p))) == set(range(likely))


def test_temperature_0_draws_the_likeliest_and_a_high_one_draws_evenly() -> None:
    assert set(drawn(Sampling(1, 0.0))) == {0}
    assert min(drawn(Sampling(1, 100.0)).values()) > 400


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_output_that_is_not_finite_is_an_error(wrong: float) -> None:
    with pytest.raises(ConfigError, match="diverged"):
        draw(torch.tensor([0.0, wrong]), Sampling(1), torch.Generator())


def test_the_end_token_ends_the_text_and_is_left_out() -> None:
    model, parameters = small_model()
    tokens = BYTES.encode("line")
    found = list(generate(model, parameters, tokens, Sampling(30), None))
    assert len(found) == 30
    end = found[10]
    assert list(generate(model, parameters, tokens, Sampling(30), end)) == found[: found.index(end)]


@pytest.mark.parametrize(
    "text", ["plain", "naïve – 日本語 🙂", "a\ufffdb", "ends with \ufffd"], ids=["ascii", "wide", "replacement", "last"]
)
def test_text_comes_in_whole_characters(text: str) -> None:
    pieces = list(text_of(BYTES, BYTES.encode("prompt"), text.encode()))
    assert "".join(pieces) == text
    assert len(pieces) > 1
    if "\ufffd" not in text:
        assert pieces == list(text)


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
