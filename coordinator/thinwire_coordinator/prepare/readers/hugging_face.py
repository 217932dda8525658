"""Data sets of the Hugging Face Hub, streamed: `hf://datasets/OWNER/NAME[/CONFIG][@REVISION][:SPLIT]`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thinwire_coordinator.prepare.problems import SourceFailed
from thinwire_coordinator.prepare.readers.parquet import check_column
from thinwire_coordinator.prepare.readers.port import Document, Reading
from thinwire_coordinator.prepare.sources import HUB
from thinwire_proto.models.extras import import_extra

ADDRESS = re.compile(
    re.escape(HUB)
    + r"(?P<name>[\w.-]+/[\w.-]+)(/(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?(:(?P<split>[\w.\[\]%:-]+))?"
)


@dataclass(frozen=True)
class HubDataset:
    """A data set. path, size, version: as of a `SourceFile`."""

    name: str
    config: str | None
    revision: str | None
    split: str
    path: str
    size: int | None = None
    version: str = ""


def parse_hub(url: str) -> HubDataset | None:
    """The data set that a URL names; None if it names files of a data set, which fsspec reads."""
    found = ADDRESS.fullmatch(url)
    if found is None:
        return None
    return HubDataset(found["name"], found["config"], found["revision"], found["split"] or "train", url)


def read_hub(dataset: HubDataset, reading: Reading) -> Iterator[Document]:
    """The documents of a data set. Raises SourceFailed if the Hub does not answer."""
    where = f"{HUB}{dataset.name}:{dataset.split}"
    rows = iter(_rows(dataset, where))
    number = 0
    while True:
        try:
            row = next(rows, None)
        except Exception as error:  # noqa: BLE001 - the library raises errors of many libraries
            raise SourceFailed(f"{where}, row {number}: cannot be read: {error}; start the command again") from None
        if row is None:
            return
        check_column(where, list(row), reading)
        if (document := reading.read(f"{where}, row {number}", row)) is not None:
            yield document
        number += 1


def _rows(dataset: HubDataset, where: str) -> Any:
    datasets = import_extra("datasets", "hub")
    for library in ("datasets", "huggingface_hub"):
        logging.getLogger(library).handlers.clear()  # this program's own log has their messages too
    try:
        return datasets.load_dataset(
            dataset.name, dataset.config, split=dataset.split, revision=dataset.revision, streaming=True
        )
    except Exception as error:  # noqa: BLE001 - the library raises errors of many libraries
        raise SourceFailed(f"{where}: cannot be opened: {error}") from None
