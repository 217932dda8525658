"""Arrow: each row is a document, whose text is in a column. `datasets` saves its data sets like this."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO, Any

from thinwire_coordinator.prepare.readers.opening import BUFFER_BYTES, Content
from thinwire_coordinator.prepare.readers.parquet import arrow_library, check_column, raise_of_system, read_rows
from thinwire_coordinator.prepare.readers.port import Document, Reading

FILE_MAGIC, STREAM_MAGIC = b"ARROW1", b"\xff\xff\xff\xff"
ARROW_MAGICS = (FILE_MAGIC, STREAM_MAGIC)


def read_arrow(name: str, content: Content, reading: Reading) -> Iterator[Document]:
    """Batch by batch, of a stream or of a file that has its list of batches at its end."""
    arrow = arrow_library()
    is_file = content.begin().startswith(FILE_MAGIC)
    opened: AbstractContextManager[IO[bytes]] = (
        content.seekable_file() if is_file else io.BufferedReader(content, BUFFER_BYTES)
    )
    with opened as file:
        try:
            table = arrow.ipc.open_file(file) if is_file else arrow.ipc.open_stream(file)
        except (arrow.ArrowException, OSError) as error:
            raise_of_system(error)
            reading.problems.skip(name, f"is not Arrow: {error}")
            return
        check_column(name, table.schema.names, reading)
        batches: Iterator[Any] = (
            (table.get_batch(number) for number in range(table.num_record_batches)) if is_file else iter(table)
        )
        bad = reading.problems.bad
        yield from read_rows(name, batches, reading)
        if not is_file and reading.problems.bad == bad:
            left_over = sum(len(data) for data in iter(lambda: file.read(BUFFER_BYTES), b""))
            if left_over and not content.is_damaged:
                reading.problems.skip(name, f"{left_over:,} bytes after the end of its Arrow stream are left out")
