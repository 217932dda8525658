"""The work of `prepare`: read, tokenize and sort all sources, cut each into shards, and write the manifest last."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path

from thinwire_common.files import replace_synced
from thinwire_coordinator.prepare.batches import Batch, Content, Position, SourceReader, content_of
from thinwire_coordinator.prepare.chat_template import ChatTemplate, find_template, with_template
from thinwire_coordinator.prepare.checkpoint import (
    Checkpoint,
    Current,
    Divided,
    Finished,
    claimed,
    disk_errors_named,
    open_checkpoint,
)
from thinwire_coordinator.prepare.held_out import Side, Split, beyond_share, left_out, side_of, split
from thinwire_coordinator.prepare.packing import RowPacker
from thinwire_coordinator.prepare.problems import Counts, Problems
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.readers.port import Reading
from thinwire_coordinator.prepare.shards import BlobWriter, ShardCutter, cut
from thinwire_coordinator.prepare.sources import WORK_FOLDER, NamedSource
from thinwire_coordinator.prepare.spill import Spill
from thinwire_coordinator.prepare.tokenizer_choice import find_tokenizer
from thinwire_coordinator.prepare.tokenizer_training import sample_of, train_tokenizer, training_library
from thinwire_coordinator.prepare.tokenizing import ByteEncoder, Encoded, Encoder, JsonEncoder, TokenizerFiles
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Conversations, Manifest
from thinwire_proto.errors import ConfigError, ThinwireError
from thinwire_proto.limits import PREPARE_SILENT_S
from thinwire_proto.models.transformers_models import CONTEXT_DEFAULT_MAX

CHECKPOINT_BYTES = 256 << 20
"""Text between two checkpoints."""
SHARD_BYTES = 2 << 20
HELD_OUT_SHARE = 0.005
BAD_MAX = 10
BYTES = "bytes"
READERS_VERSION = 6
"""Raised when readers find other documents in a file than before: a noted position would then mean another one."""


@dataclass(frozen=True)
class Settings:
    """The settings of one call of `prepare`.

    tokenizer: "bytes", or the path of a `tokenizer.json` or of its folder. train_vocabulary: size of the tokenizer to
    train instead. end_token: see `find_tokenizer`. read_special: see `JsonEncoder`. held_out: share of the documents.
    chat_template: a file, in place of the tokenizer's. context: tokens that a row of conversations predicts. packed:
    whether conversations share rows.
    """

    sources: tuple[NamedSource, ...]
    out: Path
    tokenizer: str = BYTES
    train_vocabulary: int | None = None
    end_token: str | None = None
    read_special: bool = False
    text_key: str = "text"
    chat_template: Path | None = None
    context: int = CONTEXT_DEFAULT_MAX
    packed: bool = True
    held_out: float = HELD_OUT_SHARE
    shard_bytes: int = SHARD_BYTES
    bad_max: int = BAD_MAX
    stall_s: float = PREPARE_SILENT_S
    checkpoint_bytes: int = CHECKPOINT_BYTES


@dataclass(frozen=True)
class Prepared:
    """The result of `prepare`. counts: what was skipped, of all sources."""

    manifest: Manifest
    manifest_hash: str
    sources: list[Finished]
    counts: Counts


def prepare(settings: Settings, shown: Shown) -> Prepared:
    """Write the folder that `thinwire_proto.data.manifest` describes. Raises ConfigError.

    Goes on where an earlier call with the same settings and files was interrupted; otherwise it begins anew.
    """
    with claimed(settings.out), disk_errors_named(settings.out):
        contents = {source.name: content_of(source, settings.stall_s, settings.out) for source in settings.sources}
        work = settings.out / WORK_FOLDER
        checkpoint = open_checkpoint(work, _inputs(settings, contents))
        tokenizer = _tokenizer(settings, contents, work, shown)
        encoder = encoder_of(settings, tokenizer)
        template = find_template(settings.chat_template, tokenizer)
        preparation = _Preparation(settings, encoder, template, checkpoint, shown)
        for name, content in list(contents.items())[len(checkpoint.divided) :]:
            preparation.read(name, content)
        for name in list(contents)[len(checkpoint.finished) :]:
            preparation.cut(name)
        return preparation.finish(tokenizer)


@dataclass(eq=False)
class _Preparation:
    """The sources, one after another."""

    settings: Settings
    encoder: Encoder
    template: ChatTemplate | None
    checkpoint: Checkpoint
    shown: Shown

    def __post_init__(self) -> None:
        self._blobs = BlobWriter(self.settings.out / BLOBS_FOLDER)

    def read(self, name: str, content: Content) -> None:
        """Read a source, from where its checkpoint is, and divide it."""
        problems = Problems(self.settings.bad_max, self.shown.say)
        share = self.settings.held_out
        spill, read = self._read(name, content, self._folder(len(self.checkpoint.divided)), problems)
        if problems.counts.null_texts:
            self.shown.say(f"{name}: null texts, left out: {problems.counts.null_texts:,}")
        if 0 < read.total.conversations < read.total.documents:
            raise ConfigError(
                f"source {name}: has both text and conversations; give them as two sources: text=… chats=…"
            )
        self._refuse_mixture(name, read.total)
        halves = split(name, spill.sorted(), read.total, share)
        beyond = [key.hex() for key in beyond_share(spill.sorted(), halves, share)]
        divided = Divided(read.lengths, halves, beyond, problems.counts)
        self.checkpoint.divided.append(divided)
        self.checkpoint.current = None
        self.checkpoint.write()

    def _refuse_mixture(self, name: str, total: Side) -> None:
        """Raise ConfigError if some documents are preferences and others are not."""
        sides = [total, *(side for each in self.checkpoint.divided for side in each.split)]
        found = sum(side.preferences for side in sides)
        if 0 < found < sum(side.documents for side in sides):
            raise ConfigError(
                f"source {name}: preferences cannot be mixed with text or conversations: their loss is another; "
                "prepare them for a run of their own (--text-key messages reads rows with both as conversations)"
            )

    def cut(self, name: str) -> None:
        """Write the shards of a source. All sources are divided."""
        number = len(self.checkpoint.finished)
        own = self.checkpoint.divided[number]
        self.shown.begin(f"{name}: write shards", None)
        others = (each for each in self.checkpoint.divided if each is not own)
        elsewhere = {bytes.fromhex(key) for each in others for key in each.beyond}
        spill = Spill(self._folder(number), self.encoder.dtype, own.lengths)
        spill.close()
        missing = left_out(name, spill.sorted(), own.split, elsewhere)
        halves = Split(own.split.train.minus(missing), own.split.held_out)
        shard_tokens = max(1, self.settings.shard_bytes // self.encoder.dtype.itemsize)
        packers, cutters = (
            [self._packer(), self._packer()],
            [ShardCutter(self._blobs, side, shard_tokens) for side in halves],
        )
        train, held_out = packers if halves.train.conversations else cutters
        made, packed = (
            cut(name, spill.sorted(), halves, train, held_out, elsewhere),
            packers[0].packed.plus(packers[1].packed),
        )
        if not made.train and halves.train.conversations:
            raise ConfigError(
                f"source {name}: no conversation to train on has at most {self.settings.context + 1:,} tokens; give a "
                "larger --context"
            )
        self.checkpoint.finished.append(Finished(made, halves, missing.documents, packed))
        self.checkpoint.write()
        shutil.rmtree(self._folder(number))

    def _packer(self) -> RowPacker:
        settings, encoder = self.settings, self.encoder
        return RowPacker(
            self._blobs,
            encoder.dtype,
            settings.context,
            settings.shard_bytes,
            encoder.end or 0,
            packed=settings.packed,
        )

    def _folder(self, number: int) -> Path:
        return self.checkpoint.folder / f"source-{number}"

    def _read(self, name: str, content: Content, folder: Path, problems: Problems) -> tuple[Spill, Current]:
        """Tokenize the documents into buckets."""
        current = self.checkpoint.current
        start = current.position if current else Position()
        total = current.total if current else Side()
        spill = Spill(folder, self.encoder.dtype, current.lengths if current else None)
        if current:
            self.shown.say(f"{name}: going on after {total.documents:,} documents")
        self.shown.begin(name, _bytes_of(content, start.file))
        render = None if self.template is None else self.template.render
        end, vocabulary = self.encoder.end, self.encoder.vocabulary
        reading = Reading(self.settings.text_key, end, vocabulary, problems, render=render)
        unsaved, after = 0, start
        try:
            for batch, encoded in self._encoded(SourceReader(content, reading, start, self.settings.stall_s)):
                before = total
                for document in encoded:
                    spill.add(document)
                    total = total.plus(side_of(document))
                added = total.minus(before)
                self.shown.count(batch.read_bytes, *added[:3])
                unsaved, after = unsaved + added.text_bytes, batch.after
                if unsaved >= self.settings.checkpoint_bytes:
                    unsaved = 0
                    self._save(Current(after, spill.lengths(), total))
            read = Current(after, spill.lengths(), total)
            self._save(read)
            spill.close()
        except ThinwireError:  # of the source, between two batches
            self._save(Current(after, spill.lengths(), total))
            raise
        finally:
            spill.abandon()
        return spill, read

    def _save(self, current: Current) -> None:
        self.checkpoint.current = current
        self.checkpoint.write()

    def _encoded(self, reader: SourceReader) -> Iterator[tuple[Batch, list[Encoded]]]:
        """The batches as tokens. The next batch is tokenized while the caller stores the one before."""
        with ThreadPoolExecutor(1, "tokenizer") as pool:
            waiting: tuple[Batch, Future[list[Encoded]]] | None = None
            for batch in reader:
                future = pool.submit(self.encoder.encode, batch.documents)
                if waiting is not None:
                    yield waiting[0], waiting[1].result()
                waiting = batch, future
            if waiting is not None:
                yield waiting[0], waiting[1].result()

    def finish(self, tokenizer: TokenizerFiles | None) -> Prepared:
        """Write the tokenizer and the manifest, and remove what is no longer needed."""
        finished = self.checkpoint.finished
        files = {} if tokenizer is None else tokenizer.files
        form = None
        if self.template is not None and any(each.packed.rows for each in finished):
            files = with_template(files, self.template)
            preferences = any(side.preferences for each in finished for side in each.split)
            settings = self.settings
            form = Conversations(context=settings.context, packed=settings.packed, preferences=preferences)
        manifest = Manifest(
            token=self.encoder.dtype.name,
            vocabulary=self.encoder.vocabulary,
            end=self.encoder.end,
            tokenizer=None if tokenizer is None else self._blobs.keep(tokenizer.path.read_bytes()),
            files={name: self._blobs.keep(data) for name, data in files.items()},
            sources=tuple(each.source for each in finished),
            conversations=form,
        )
        written = manifest.written()
        self._blobs.keep_only({blob.hash for blob in manifest.blobs()})
        replace_synced(self.settings.out / MANIFEST_FILE, written)
        shutil.rmtree(self.checkpoint.folder)
        return Prepared(
            manifest,
            hashlib.sha256(written).hexdigest(),
            finished,
            reduce(Counts.plus, (each.counts for each in self.checkpoint.divided)),
        )


def encoder_of(settings: Settings, tokenizer: TokenizerFiles | None) -> Encoder:
    """The encoder of a tokenizer; of bytes without one."""
    return ByteEncoder() if tokenizer is None else JsonEncoder(tokenizer, settings.read_special)


def _tokenizer(settings: Settings, contents: dict[str, Content], work: Path, shown: Shown) -> TokenizerFiles | None:
    """The tokenizer to use; None for bytes. A trained one is kept in `work` for the case of an interruption."""
    if settings.train_vocabulary is None:
        return None if settings.tokenizer == BYTES else find_tokenizer(Path(settings.tokenizer), settings.end_token)
    path = work / "tokenizer.json"
    if path.exists():
        return TokenizerFiles(path, 0)
    training_library()  # before minutes of reading
    shown.begin("read a sample for the tokenizer", None)
    template = find_template(settings.chat_template, None)
    render = None if template is None else template.render
    texts = list(sample_of(list(contents.values()), settings.text_key, settings.held_out, settings.stall_s, render))
    shown.begin(f"train a tokenizer on {sum(len(text) for text in texts):,} characters", None)
    return train_tokenizer(texts, settings.train_vocabulary, path, shown.say)


def _bytes_of(content: Content, first: int) -> int | None:
    """Bytes of the files from `first` on, if all are known."""
    sizes = [file.size for file in content[first:]]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _inputs(settings: Settings, contents: dict[str, Content]) -> str:
    """A hash of everything that the shards depend on; of files, their names, sizes and times."""
    kept = asdict(replace(settings, out=Path(), stall_s=0, checkpoint_bytes=0, bad_max=0))
    found = hashlib.sha256(json.dumps([READERS_VERSION, kept], sort_keys=True, default=str).encode())
    if settings.chat_template is not None and settings.chat_template.is_file():
        found.update(settings.chat_template.read_bytes())
    for content in contents.values():
        for part in content:
            found.update(f"{part.path}\0{part.version}\n".encode(errors="surrogateescape"))
    if settings.tokenizer != BYTES and settings.train_vocabulary is None:
        files = find_tokenizer(Path(settings.tokenizer), settings.end_token)
        found.update(files.path.read_bytes())
        found.update(json.dumps([files.end, {name: data.hex() for name, data in files.files.items()}]).encode())
    return found.hexdigest()
