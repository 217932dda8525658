"""Reads the documents of a source in a thread, in batches, while earlier batches are tokenized."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from thinwire_coordinator.prepare.conversations import Rendered
from thinwire_coordinator.prepare.problems import Counts, SourceFailed
from thinwire_coordinator.prepare.readers.choice import read_documents
from thinwire_coordinator.prepare.readers.hugging_face import HubDataset, parse_hub, read_hub
from thinwire_coordinator.prepare.readers.port import Document, Reading
from thinwire_coordinator.prepare.sources import HUB, NamedSource, SourceFile, find_files
from thinwire_proto.errors import ConfigError, ThinwireError

BATCH_BYTES = 1 << 20
BATCHES_WAITING_MAX = 2
LOOK_EVERY_S = 0.5
TOKEN_BYTES = 4
"""Bytes that a token of a `.bin` file counts for in BATCH_BYTES."""


Part = SourceFile | HubDataset
Content = Sequence[Part]
"""The content of a source: its files, or one data set of the Hub."""


def content_of(source: NamedSource, stall_s: float, out: Path | None = None) -> Content:
    """The content of a source, without what is in the folder `out`, which `prepare` writes. Raises ConfigError, and
    SourceFailed if an address does not answer."""
    datasets = [dataset for url in source.urls if (dataset := parse_hub(url)) is not None]
    if datasets and len(source.urls) > 1:
        raise ConfigError(f"source {source.name}: a data set of the Hub must be a source of its own: NAME={HUB}…")
    return datasets or [file for url in source.urls for file in find_files(url, stall_s, out)]


class Position(NamedTuple):
    """A position in a source. documents: of the file with this number. counts: found before that file."""

    file: int = 0
    documents: int = 0
    counts: Counts = Counts()


class Batch(NamedTuple):
    """Documents, and the position after them. read_bytes: of the source, up to and with these documents."""

    documents: list[Document]
    after: Position
    read_bytes: int


class SourceReader:
    """Reads one source.

    start: where to go on. stall_s: how long a source may send nothing.
    """

    def __init__(self, content: Content, reading: Reading, start: Position, stall_s: float) -> None:
        self._content = content
        self._reading = replace(reading, advance=self._hear)
        self._read_bytes = 0
        self._start = start
        self._stall_s = stall_s
        self._at = "the source"
        self._heard_at = time.monotonic()
        self._batches: queue.Queue[Batch | Exception | None] = queue.Queue(BATCHES_WAITING_MAX)
        self._stopped = threading.Event()
        reading.problems.counts = start.counts

    def __iter__(self) -> Iterator[Batch]:
        """The batches. Raises SourceFailed if the source cannot be read or stalls, and what a reader raises."""
        thread = threading.Thread(target=self._run, name="source reader", daemon=True)
        self._heard_at = time.monotonic()
        thread.start()
        try:
            while (batch := self._next()) is not None:
                if isinstance(batch, Exception):
                    raise batch
                yield batch
        finally:
            self._stopped.set()

    def _next(self) -> Batch | Exception | None:
        while True:
            try:
                return self._batches.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                if time.monotonic() - self._heard_at > self._stall_s:
                    raise SourceFailed(
                        f"{self._at}: sent nothing for {self._stall_s:.0f} s; check the connection, and start the "
                        "command again to go on"
                    ) from None

    def _run(self) -> None:
        try:
            for batch in self._read():
                self._put(batch)
            self._put(None)
        except ThinwireError as error:
            self._put(error)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread; each file system has errors of its own
            self._put(SourceFailed(f"{self._at}: cannot be read: {error!r}; start the command again to go on"))

    def _put(self, batch: Batch | Exception | None) -> None:
        while not self._stopped.is_set():
            try:
                return self._batches.put(batch, timeout=LOOK_EVERY_S)
            except queue.Full:
                self._heard_at = time.monotonic()  # it is not the source that is slow

    def _read(self) -> Iterator[Batch]:
        documents: list[Document] = []
        size = 0
        position = self._start
        for document, position in self._documents():
            documents.append(document)
            size += len(document) * (TOKEN_BYTES if isinstance(document, np.ndarray) else 1)
            if size >= BATCH_BYTES:
                yield Batch(documents, position, self._read_bytes)
                documents, size = [], 0
        yield Batch(documents, position, self._read_bytes)

    def _documents(self) -> Iterator[tuple[Document, Position]]:
        """Documents that are not empty, from the start on, each with the position after it. Raises ConfigError where a
        conversation follows text, or text a conversation: a file that is there by mistake ends the work at once."""
        problems, start = self._reading.problems, self._start
        were_conversations: bool | None = None
        for number in range(start.file, len(self._content)):
            before = problems.counts
            skipped = start.documents if number == start.file else 0
            for index, document in enumerate(self._of_part(self._content[number]), 1):
                self._heard_at = time.monotonic()
                if index > skipped and len(document):
                    is_conversation = isinstance(document, Rendered)
                    if were_conversations not in (None, is_conversation):
                        found, before_it = ("conversations", "text")[:: 1 if is_conversation else -1]
                        raise ConfigError(
                            f"{self._at}: has {found}, and what was read of this source before has {before_it}; leave "
                            "the file out, or give two sources: text=… chats=…"
                        )
                    were_conversations = is_conversation
                    yield document, Position(number, index, before)

    def _of_part(self, file: Part) -> Iterator[Document]:
        self._at = file.name
        if isinstance(file, HubDataset):
            yield from read_hub(file, self._reading)
            return
        try:
            yield from read_documents(file, self._reading)
        except PermissionError as error:
            self._reading.problems.skip(file.name, f"cannot be opened: {error.strerror or error}")
        except FileNotFoundError as error:
            if not file.is_local:
                raise
            self._reading.problems.skip(file.name, f"cannot be opened: {error.strerror}")  # a link to nowhere, or gone

    def _hear(self, count: int) -> None:
        self._heard_at = time.monotonic()
        self._read_bytes += count
