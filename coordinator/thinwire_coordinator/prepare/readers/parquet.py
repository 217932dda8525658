"""Parquet: each row is a document, whose text is in a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from thinwire_coordinator.prepare.readers.opening import Content
from thinwire_coordinator.prepare.readers.port import Document, Reading
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra

BATCH_ROWS = 256


def read_parquet(name: str, content: Content, reading: Reading) -> Iterator[Document]:
    """Row group by row group, so that a broken page costs at most the rest of its row group."""
    arrow = arrow_library()
    with content.seekable_file() as file:
        try:
            table = arrow.parquet.ParquetFile(file, page_checksum_verification=True)
        except (arrow.ArrowException, OSError) as error:
            raise_of_system(error)
            reading.problems.skip(name, f"is not Parquet: {error}")
            return
        check_column(name, table.schema_arrow.names, reading)
        columns = reading.keys(table.schema_arrow.names)
        for group in range(table.metadata.num_row_groups):
            batches = table.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False)
            yield from read_rows(f"{name}, row group {group}", batches, reading)


def read_rows(where: str, batches: Iterator[Any], reading: Reading) -> Iterator[Document]:
    """The texts in batches of Arrow. One that cannot be read ends them."""
    row = 0
    while True:
        try:
            batch = next(batches, None)
            rows = rows_of(batch, reading) if batch is not None else None
        except (arrow_library().ArrowException, UnicodeDecodeError, OSError) as error:
            raise_of_system(error)
            reading.problems.skip(f"{where}, from row {row} on", f"cannot be read: {error}")
            return
        if rows is None:
            return
        for found in rows:
            if (document := reading.read(f"{where}, row {row}", found)) is not None:
                yield document
            row += 1


def rows_of(batch: Any, reading: Reading) -> list[dict[str, Any]]:
    """The rows of a batch of Arrow, with the columns that a document may be read from."""
    columns = {name: batch.column(name).to_pylist() for name in reading.keys(batch.schema.names)}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def check_column(name: str, columns: Sequence[str], reading: Reading) -> None:
    """Raises ConfigError if the column with the text is missing, or is there twice."""
    if twice := [key for key in reading.keys(columns) if list(columns).count(key) > 1]:
        raise ConfigError(f"{name}: has more than one column {twice[0]!r}; leave one, or name another with --text-key")
    if not reading.has_document(columns):
        raise ConfigError(
            f"{name}: has no column {reading.text_key!r}, and none of a conversation, but {', '.join(columns)}; "
            "--text-key names the column"
        )


def raise_of_system(error: Exception) -> None:
    """Raise an error of the disk or the network again. One of the file's contents has no number."""
    if isinstance(error, OSError) and (error.errno is not None or isinstance(error, (ConnectionError, TimeoutError))):
        raise error


def arrow_library() -> Any:
    for module in ("pyarrow.ipc", "pyarrow.parquet"):
        import_extra(module, "data")
    return import_extra("pyarrow", "data")
