"""What `prepare` prints: the summary at its end, and the first conversations as they would be trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch

from thinwire_common.units import human_bytes
from thinwire_coordinator.prepare.batches import Position, SourceReader, content_of
from thinwire_coordinator.prepare.chat_template import find_template
from thinwire_coordinator.prepare.conversations import Rendered
from thinwire_coordinator.prepare.images import PreparedImages
from thinwire_coordinator.prepare.packing import Packed
from thinwire_coordinator.prepare.preparation import BYTES, Prepared, Settings, encoder_of
from thinwire_coordinator.prepare.problems import Counts, Problems
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.readers.port import Reading
from thinwire_coordinator.prepare.tokenizer_choice import find_tokenizer
from thinwire_coordinator.prepare.tokenizing import Encoded
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.data.conversations import BEGINS, COUNTS
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.data.manifest import Manifest
from thinwire_proto.errors import ConfigError
from thinwire_proto.task import Tokenizer

CLASSES_SHOWN = 20


def summary(out: Path, prepared: Prepared) -> str:
    """A table of the sources, what was skipped, the hash of the manifest, and the lines for the run file."""
    rows = [("source", "", "documents", "tokens", "text", "shards")]
    for finished in prepared.sources:
        source, split = finished.source, finished.split
        for label, side, shards in (
            ("train", split.train, source.train),
            ("held out", split.held_out, source.held_out),
        ):
            counts = f"{side.documents:,}", f"{side.tokens:,}", human_bytes(side.text_bytes), str(len(shards))
            rows.append((source.name, label, *counts))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    for finished in prepared.sources:
        if finished.left_out:
            what = f"not trained on in {finished.source.name}, because another source holds them out"
            lines.append(f"{what}: {finished.left_out:,} documents")
    for finished in prepared.sources:
        lines += _packed(finished.source.name, finished.packed, prepared.manifest)
    lines += _skipped(prepared.counts)
    manifest = prepared.manifest
    lines += [
        f"vocabulary: {manifest.vocabulary:,} tokens ({manifest.token} in the shards)",
        f"manifest: {prepared.manifest_hash}",
        "",
        "Lines for the run file; model.vocabulary must be at least the vocabulary above"
        + (f", and model.context {manifest.conversations.context}" if manifest.conversations else "")
        + (", with model.kind lora:" if manifest.conversations and manifest.conversations.preferences else ":"),
        "",
        *_run_file("tokens", out),
    ]
    return "\n".join(lines)


def _packed(name: str, packed: Packed, manifest: Manifest) -> list[str]:
    """How the conversations of a source fill rows, and which are left out."""
    if manifest.conversations is None or not packed.rows:
        return []
    length = manifest.conversations.context + 1
    what = "preferences" if manifest.conversations.preferences else "conversations"
    found = [
        f"{name}: {packed.conversations:,} {what} in {packed.rows:,} rows of {length:,} tokens, "
        f"{packed.tokens / (packed.rows * length):.0%} full; of their {packed.tokens:,} tokens {packed.counted:,} count"
    ]
    if packed.too_long:
        found.append(f"{name}: left out, longer than {length:,} tokens (--context): {packed.too_long:,} {what}")
    if packed.uncounted:
        found.append(f"{name}: left out, no token of them counts: {packed.uncounted:,} {what}")
    return found


def _skipped(counts: Counts) -> list[str]:
    lines = []
    if counts.bad or counts.binary_files or counts.null_texts:
        nulls = f"; null texts: {counts.null_texts:,}" if counts.null_texts else ""
        lines.append(f"skipped: unreadable parts: {counts.bad}; binary files: {counts.binary_files}{nulls}")
    if counts.no_response:
        lines.append(f"left out, without a response or with an empty one: {counts.no_response:,} conversations")
    if counts.unrendered:
        lines.append(f"left out, the chat template cannot write them: {counts.unrendered:,} conversations")
    if counts.equal:
        lines.append(f"left out, both responses are the same: {counts.equal:,} preferences")
    if counts.as_text:
        lines.append(f"files read as plain text although they look like something else: {counts.as_text:,}")
    return lines


def summary_of_images(out: Path, prepared: PreparedImages) -> str:
    """Counts of images, made and skipped, the hash of the manifest, and the lines for the run file."""
    manifest, halves = prepared.manifest, prepared.split
    lines = [
        f"train: {halves.train.documents:,} images in {len(manifest.train)} shards",
        f"held out: {halves.held_out.documents:,} images in {len(manifest.held_out)} shards",
        *([f"skipped: unreadable images: {prepared.bad}"] if prepared.bad else []),
        f"classes: {', '.join(manifest.classes[:CLASSES_SHOWN])}{' …' * (len(manifest.classes) > CLASSES_SHOWN)}",
        f"manifest: {prepared.manifest_hash}",
        "",
        f"Lines for the run file; model.classes must be {len(manifest.classes)}, and model.image_size "
        f"{manifest.image_size}:",
        "",
        *_run_file("images", out),
    ]
    return "\n".join(lines)


def _run_file(kind: str, out: Path) -> list[str]:
    return ["[data]", f'kind = "{kind}"', f"folder = {json.dumps(str(out.resolve()), ensure_ascii=False)}"]


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    """Text to the left, numbers to the right."""
    return [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


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
