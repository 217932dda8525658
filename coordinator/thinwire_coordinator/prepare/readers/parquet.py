"""Parquet: each row is a document, whose text is in a column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thinwire_coordinator.prepare.readers.json_lines import checked_text
from thinwire_coordinator.prepare.readers.opening import stored
from thinwire_coordinator.prepare.readers.port import Document, Reading
from thinwire_coordinator.prepare.sources import SourceFile
from thinwire_proto.errors import ConfigError

BATCH_ROWS = 256


def read_parquet(file: SourceFile, reading: Reading) -> Iterator[Document]:
    """Row group by row group, so that a broken page costs at most the rest of its row group."""
    arrow, parquet = _library()
    with stored(file, reading.advance) as content:
        try:
            table = parquet.ParquetFile(content, page_checksum_verification=True)
        except arrow.ArrowInvalid as error:
            reading.problems.skip(file.name, f"is not Parquet: {error}")
            return
        names = table.schema_arrow.names
        if reading.text_key not in names:
            raise ConfigError(
                f"{file.name}: has no column {reading.text_key!r}, but {', '.join(names)}; --text-key names the column"
            )
        for group in range(table.metadata.num_row_groups):
            yield from _row_group(arrow, table, group, file, reading)


def _row_group(arrow: Any, table: Any, group: int, file: SourceFile, reading: Reading) -> Iterator[Document]:
    batches = table.iter_batches(BATCH_ROWS, row_groups=[group], columns=[reading.text_key], use_threads=False)
    row = 0
    while True:
        try:
            batch = next(batches, None)
            values = batch.column(0).to_pylist() if batch is not None else None
        except (arrow.ArrowException, UnicodeDecodeError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk or the network, not the file
                raise
            reading.problems.skip(f"{file.name}, row group {group}, from row {row} on", f"cannot be read: {error}")
            return
        if values is None:
            return
        for value in values:
            try:
                yield checked_text(value, reading.text_key)
            except ValueError as error:
                reading.problems.skip(f"{file.name}, row group {group}, row {row}", str(error))
            row += 1


def _library() -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise ConfigError("Parquet needs the library pyarrow: pip install 'thinwire[data]'") from None
    return pyarrow, pyarrow.parquet
