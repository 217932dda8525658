"""Trains a tokenizer on a sample of the sources: byte-pair encoding of bytes, as GPT-2 has it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from thinwire_common.files import replace_synced
from thinwire_coordinator.prepare.batches import Content, Position, SourceReader
from thinwire_coordinator.prepare.conversations import Conversation, Preference, Rendered
from thinwire_coordinator.prepare.held_out import is_held_out
from thinwire_coordinator.prepare.problems import Problems
from thinwire_coordinator.prepare.readers.port import Reading
from thinwire_coordinator.prepare.tokenizing import TokenizerFiles, key_of
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra

END_WORD = "<|endoftext|>"
SAMPLE_BYTES = 32 << 20
"""Text to train on, from all sources together."""
FILE_BYTES_MIN = 1 << 20
"""Bytes that may be taken of each file, even if there are many."""
PROBLEMS_MAX = 1 << 62


def train_tokenizer(
    texts: Iterable[str], vocabulary: int, path: Path, say: Callable[[str], None] = lambda line: None
) -> TokenizerFiles:
    """Train and write a `tokenizer.json`. The same texts give the same file. Token 0 ends a document.

    texts: their order does not matter; at most SAMPLE_BYTES are used. say: told if the texts have too few pairs.
    Raises ConfigError.
    """
    library = training_library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_WORD],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_bounded(texts), trainer)
    if (found := tokenizer.get_vocab_size()) < vocabulary:
        say(f"--train-tokenizer: the text is enough for {found:,} tokens, not {vocabulary:,}; give more text for more")
    replace_synced(path, tokenizer.to_str(pretty=True).encode())  # `save` would leave half of it after a kill
    return TokenizerFiles(path, 0)


def sample_of(
    contents: Sequence[Content],
    text_key: str,
    held_out: float,
    stall_s: float,
    render: Callable[[Conversation | Preference], Rendered] | None = None,
) -> Iterator[str]:
    """Text to train a tokenizer on, the same each time: the beginnings of files of each source, in the order of a hash
    of their names. Held-out documents are not in it. Parts that cannot be read are passed over here, and reported when
    the source is prepared."""
    problems = Problems(PROBLEMS_MAX, lambda line: None)
    reading = Reading(text_key, None, 1 << 32, problems, render=render)
    for content in contents:
        left = SAMPLE_BYTES // len(contents)
        allowed = max(FILE_BYTES_MIN, 4 * left // len(content))
        for part in sorted(content, key=lambda part: hashlib.sha256(os.fsencode(part.name)).digest()):
            taken = 0
            for batch in SourceReader([part], reading, Position(), stall_s):
                for document in batch.documents:
                    if isinstance(document, Rendered):
                        document = document.whole  # noqa: PLW2901 - the tokenizer learns of what the template writes
                    if not isinstance(document, str):
                        raise ConfigError(
                            f"--train-tokenizer: {part.name} holds tokens, not text; remove it, or give its tokenizer "
                            "with --tokenizer"
                        )
                    utf8 = document.encode()
                    if not is_held_out(key_of(utf8), held_out):
                        taken += len(utf8)
                        yield document
                if taken >= min(left, allowed):
                    break
            if (left := left - taken) <= 0:
                break


def _bounded(texts: Iterable[str]) -> Iterator[str]:
    left = SAMPLE_BYTES
    for text in texts:
        yield text[:left]
        left -= len(text.encode())
        if left <= 0:
            return


def training_library() -> Any:
    """The library that trains a tokenizer. Raises ConfigError if it is missing."""
    import_extra("tokenizers.trainers", "data")
    return import_extra("tokenizers", "data")
