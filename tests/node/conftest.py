from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.file_server import FileServer, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    """A server of the files in a folder that the test fills."""
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as found:
        yield found
