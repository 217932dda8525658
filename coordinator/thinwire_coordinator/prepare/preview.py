"""Shows the first conversations of the sources, as they would be trained on, with what counts marked."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch

from thinwire_coordinator.prepare.batches import Position, SourceReader, content_of
from thinwire_coordinator.prepare.chat_template import find_template
from thinwire_coordinator.prepare.conversations import Rendered
from thinwire_coordinator.prepare.preparation import BYTES, Settings, encoder_of
from thinwire_coordinator.prepare.problems import Problems
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.readers.port import Reading
from thinwire_coordinator.prepare.tokenizer_choice import find_tokenizer
from thinwire_coordinator.prepare.tokenizing import Encoded
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.data.conversations import BEGINS, COUNTS
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.errors import ConfigError
from thinwire_proto.task import Tokenizer

COLOUR = "\x1b[32m", "\x1b[0m"
BRACKETS = "⟦", "⟧"


def preview(settings: Settings, count: int, shown: Shown, *, coloured: bool) -> Iterator[str]:
    """The first `count` conversations of each source, as text. coloured: what counts is green; otherwise it is in
    brackets. Raises ConfigError."""
    files = None if settings.tokenizer == BYTES else find_tokenizer(Path(settings.tokenizer), settings.end_token)
    encoder, template = encoder_of(settings, files), find_template(settings.chat_template, files)
    tokenizer: Tokenizer = ByteTokenizer() if files is None else JsonTokenizer(files.path, files.end)
    render, found = None if template is None else template.render, 0
    for source in settings.sources:
        problems = Problems(settings.bad_max, shown.say)
        reading = Reading(settings.text_key, encoder.end, encoder.vocabulary, problems, render=render)
        reader = SourceReader(content_of(source, settings.stall_s), reading, Position(), settings.stall_s)
        chats = (one for batch in reader for one in batch.documents if isinstance(one, Rendered))
        for number, chat in enumerate(islice(chats, count), 1):
            found += 1
            (encoded,) = encoder.encode([chat])
            yield "".join(_in_words(f"{source.name} {number}", encoded, tokenizer, settings.context, coloured=coloured))
    if not found:
        raise ConfigError("--show: the sources have no conversations; what they have is text, all of which counts")


def _in_words(name: str, encoded: Encoded, tokenizer: Tokenizer, context: int, *, coloured: bool) -> Iterator[str]:
    """The conversation, or both of a preference."""
    assert encoded.marks is not None
    before, after = COLOUR if coloured else BRACKETS
    begins = np.flatnonzero(encoded.marks & BEGINS)[1:]
    too_long = "; too long for --context" * (len(encoded.marks) > context + 1)
    labels = (f"── {name} chosen", f"\n── {name} rejected") if len(begins) else (f"── {name}",)
    both = zip(labels, np.split(encoded.tokens, begins), np.split(encoded.marks, begins), strict=True)
    for label, tokens, marks in both:
        counts = (marks & COUNTS) > 0
        yield f"{label}: {len(counts):,} tokens, {int(counts.sum()):,} count{too_long}\n"
        for is_counted, group in groupby(range(len(counts)), key=lambda index: bool(counts[index])):
            text = _printable(tokenizer.decode(torch.from_numpy(tokens[list(group)].astype(np.int64))))
            yield f"{before}{text}{after}" if is_counted else text


def _printable(text: str) -> str:
    """Data may hold signs that would steer a terminal."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}" for sign in text)
