"""The sink for TensorBoard: event files in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire_coordinator.hall.observe.sinks.worker import Point
from thinwire_proto.errors import ConfigError


class TensorBoard:
    """Writes points as scalars into `folder`. Each coordinator process begins a file; TensorBoard joins them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, points: Sequence[Point]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - slow, and an extra

            self._writer = SummaryWriter(str(self._folder))
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step, point.at)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def prepare_folder(folder: Path) -> None:
    """Create the folder. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--tensorboard {folder}: {error.strerror or error}; give another folder") from None
