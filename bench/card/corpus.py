"""The text of the card's runs: text files of a Python installation, packed into one file that travels to the card.

A packed file is one zstd stream: a line of JSON, a tokenizer, the training text, and the held-out text. Files are
deduplicated by their hash, and whole packages are held out: files of one package repeat each other's lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard

from bench.convergence.text import Text, number_of, text_files

BYTES_MAX = 200_000_000
"""The size of the training text: about 20 bytes for each parameter of `byte-10m`. Packed, they are 30 MB."""
HELD_OUT_ONE_IN = 100
TOKENIZER_BYTES = 24_000_000
VOCABULARY = 50304
"""Of `llama-124m`."""
FILES_AT_ONCE = 512
"""Tokenized at a time. Bounds the memory."""
LEVEL, WINDOW_LOG = 19, 27
SEPARATOR = b"\x00"
PYTHON = (Path(sysconfig.get_paths()["stdlib"]), Path(sysconfig.get_paths()["purelib"]))
"""The standard library and the installed packages of this Python."""


@dataclass(frozen=True)
class Packed:
    """A packed file that was read. hash: of its text, the same for bytes and tokens."""

    hash: str
    tokenizer: str
    train: bytes
    held_out: bytes

    def as_bytes(self) -> Text:
        train, held_out = (np.frombuffer(part, np.uint8) for part in (self.train, self.held_out))
        return Text(train, held_out, self.hash)

    def as_tokens(self) -> Text:
        """The text through the tokenizer, file by file, on all processors."""
        from tokenizers import Tokenizer  # noqa: PLC0415 - bytes need none

        tokenizer = Tokenizer.from_str(self.tokenizer)
        parts = []
        for part in (self.train, self.held_out):
            files = [file.decode(errors="replace") for file in part.split(SEPARATOR)]
            parts.append(
                np.concatenate(
                    [
                        np.array(one.ids, np.uint16)
                        for start in range(0, len(files), FILES_AT_ONCE)
                        for one in tokenizer.encode_batch_fast(files[start : start + FILES_AT_ONCE])
                    ]
                )
            )
        return Text(parts[0], parts[1], self.hash)


def pack(
    into: Path, folders: tuple[Path, ...] = PYTHON, bytes_max: int = BYTES_MAX, vocabulary: int = VOCABULARY
) -> str:
    """Pack the text files of `folders`, and return a sentence about them."""
    files = text_files(folders)
    apart = _held_out_packages(files, bytes_max)
    train, held_out, size = [], [], 0
    for path, package in files.items():
        content = path.read_bytes().replace(SEPARATOR, b"")
        if package in apart:
            held_out.append(content)
        elif size + len(content) <= bytes_max:
            train.append(content)
            size += len(content)
    tokenizer = _tokenizer(train, vocabulary).encode()
    texts = SEPARATOR.join(train), SEPARATOR.join(held_out)
    digest = hashlib.sha256(tokenizer)
    for text in texts:
        digest.update(text)
    head = {"hash": digest.hexdigest(), "tokenizer": len(tokenizer), "train": len(texts[0]), "held_out": len(texts[1])}
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL, window_log=WINDOW_LOG, enable_ldm=True, threads=os.cpu_count() or 1
    )
    whole = json.dumps(head).encode() + b"\n" + tokenizer + b"".join(texts)
    into.write_bytes(zstandard.ZstdCompressor(compression_params=parameters).compress(whole))
    return f"{len(train):,} files, {len(texts[0]):,} bytes, packed into {into.stat().st_size:,}; hash {head['hash']}"


def _held_out_packages(files: Mapping[Path, str], bytes_max: int) -> set[str]:
    """Packages with about one of HELD_OUT_ONE_IN bytes, in an order that depends on their names."""
    sizes: Counter[str] = Counter()
    for path, package in files.items():
        sizes[package] += path.stat().st_size
    left, found = min(bytes_max, sizes.total()) / HELD_OUT_ONE_IN, set[str]()
    for package in sorted(sizes, key=number_of):
        if sizes[package] <= left:
            found.add(package)
            left -= sizes[package]
    return found or {min(sizes, key=lambda package: sizes[package])}


def read(path: Path) -> Packed:
    """Read a packed file. Raises ValueError if it is not what its first line says."""
    with path.open("rb") as file:
        whole = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).stream_reader(file).read()
    line, rest = whole.split(b"\n", 1)
    head = json.loads(line)
    if hashlib.sha256(rest).hexdigest() != head["hash"]:
        raise ValueError(f"{path} is damaged: its text does not match its hash")
    first, second = head["tokenizer"], head["tokenizer"] + head["train"]
    return Packed(head["hash"], rest[:first].decode(), rest[first:second], rest[second:])


def _tokenizer(files: list[bytes], vocabulary: int) -> str:
    """A byte-pair tokenizer trained on a part of the files."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - only packing needs it

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    step = max(1, sum(map(len, files)) // TOKENIZER_BYTES)
    tokenizer.train_from_iterator((file.decode(errors="replace") for file in files[::step]), trainer)
    return str(tokenizer.to_str())
