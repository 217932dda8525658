"""Reads what `thinwire-node doctor --json` printed: a measured machine and its line, for plans."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire_proto.errors import ConfigError

REPORT_BYTES_MAX = 1 << 20
FIGURE_MAX = 1e15


class _Part(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class MachineReport(_Part):
    """tokens_s: of the preset byte-1m."""

    tokens_s: float = Field(gt=0, le=FIGURE_MAX)
    memory_bytes: int = Field(gt=0, le=FIGURE_MAX)
    card_bytes: int | None = Field(None, gt=0, le=FIGURE_MAX)


class LineReport(_Part):
    up_bits_s: float = Field(gt=0, le=FIGURE_MAX)
    down_bits_s: float = Field(gt=0, le=FIGURE_MAX)


class CoordinatorReport(_Part):
    """parameters: of the run's model. line: None if it was not measured."""

    parameters: int = Field(ge=0, le=FIGURE_MAX)
    line: LineReport | None = None


class RunReport(_Part):
    """Speeds on the run's model; None if they were not measured. samples_full: of a round."""

    samples_s: float | None = Field(None, gt=0, le=FIGURE_MAX)
    tokens_s: float | None = Field(None, gt=0, le=FIGURE_MAX)
    samples_full: int = Field(gt=0, le=FIGURE_MAX)


class DoctorReport(_Part):
    """The document that `thinwire-node doctor --json` prints. coordinator, run: None if it had no invite."""

    machine: MachineReport
    coordinator: CoordinatorReport | None = None
    run: RunReport | None = None

    @property
    def line(self) -> LineReport | None:
        return self.coordinator.line if self.coordinator is not None else None


def read_doctor_report(path: Path) -> DoctorReport:
    """Read a file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            return DoctorReport.model_validate_json(file.read(REPORT_BYTES_MAX))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError:
        wanted = "write it with: thinwire-node doctor INVITE --json > doctor.json"
        raise ConfigError(f"{path}: is not what `thinwire-node doctor --json` prints; {wanted}") from None
