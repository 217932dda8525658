"""Generates text with a model: draws tokens one by one, and turns them into text as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire_proto.errors import ConfigError
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import DataSource, Tokenizer, Writes

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The sign of a decoder for bytes that are no character. At the end of a text, they may become one."""
SAMPLE_TOKENS = 120
"""Length of a sample for the page."""


@dataclass(frozen=True)
class Sampling:
    """Settings of the drawing of tokens.

    length: the most tokens to draw. temperature: divides the logits; 0 picks the most likely token. top_p: draw only
    from the most likely tokens whose probabilities add up to this (nucleus sampling, arXiv 1904.09751).
    """

    length: int
    temperature: float = 0.8
    top_p: float = 1.0
    seed: int = 1


def tokenizer_of(model: Stateless, data: DataSource) -> Tokenizer | None:
    """The tokenizer of a model that generates text; None for another model."""
    return data.tokenizer if isinstance(model.model, Writes) else None


def first_prompt(tokenizer: Tokenizer | None) -> str:
    """The prompt where nobody gave one: nothing, where a token begins a document; otherwise a word of the built-in
    corpus, which is Python."""
    return "def " if tokenizer is None or tokenizer.end is None else ""


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> Tensor:
    """The tokens [n] of a prompt, at least one: a model needs something to continue."""
    if prompt and len(tokens := tokenizer.encode(prompt)):
        return tokens
    return tokenizer.encode("\n") if tokenizer.end is None else torch.tensor([tokenizer.end])


@torch.no_grad()
def generate(
    model: Stateless, parameters: Mapping[str, Tensor], prompt: Tensor, sampling: Sampling, end: int | None
) -> Iterator[int]:
    """Yield the tokens after a prompt [n] as they are drawn, up to `sampling.length` or to the token `end`, which is
    left out. Raises ConfigError if the model's output is not finite."""
    generator = torch.Generator().manual_seed(sampling.seed)
    tokens, cache = prompt, None
    for _ in range(sampling.length):
        logits, cache = model.continued_logits(parameters, tokens, cache)
        token = draw(logits, sampling, generator)
        if token == end:
            return
        tokens = torch.cat([tokens, torch.tensor([token])])
        yield token


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draw a token from its logits, float32 [vocabulary]. Raises ConfigError if they are not finite."""
    if logits.isnan().any() or logits.isposinf().any():
        raise ConfigError("the model's output is not finite, so the run has diverged; give an earlier step with --step")
    if sampling.temperature == 0 or not (scaled := logits / sampling.temperature).max().isfinite():
        return int(logits.argmax())  # so near to 0 that float32 does not hold the quotients
    probabilities = torch.softmax(scaled, 0)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(descending=True, stable=True)
        outside = ordered.cumsum(0) - ordered >= sampling.top_p  # never the first: the sum before it is 0
        probabilities[order[outside]] = 0
    return int(torch.multinomial(probabilities, 1, generator=generator))


def text_of(tokenizer: Tokenizer, prompt: Tensor, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens that continue a prompt [n], as they come, in whole characters.

    A character may take several tokens, and a token's text may depend on the one before it. So each step decodes the
    newest piece again, together with the tokens that follow, and yields what was added (as vLLM does).
    """
    kept = prompt.tolist()  # the newest piece that was yielded, and the tokens after it
    told = len(kept)
    for token in tokens:
        kept.append(token)
        before, text = _decode(tokenizer, kept[:told]), _decode(tokenizer, kept)
        if len(text) > len(before) and not text.endswith(UNFINISHED):
            yield text[len(before) :]
            kept, told = kept[told:], len(kept) - told
    if rest := _decode(tokenizer, kept)[len(_decode(tokenizer, kept[:told])) :]:
        yield rest


def _decode(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return tokenizer.decode(torch.tensor(tokens, dtype=torch.int64))
