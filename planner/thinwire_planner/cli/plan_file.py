"""The TOML file of a setting, and the setting that it describes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails

from thinwire_common.options import IN_WORDS
from thinwire_planner.methods.method import Rates, Setting
from thinwire_planner.timing.compute import VARIATION_MAX, ComputeTimes
from thinwire_planner.timing.network import Network
from thinwire_proto.contract.models.presets import PRESETS
from thinwire_proto.contract.rules.merged_muon import MergedMuonSpec
from thinwire_proto.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MEGA = 1e6
NODES_MAX = 4096
TIMES_MAX = 10_000
POSITIVE_MIN, POSITIVE_MAX = 1e-12, 1e12
Positive = Annotated[float, Field(ge=POSITIVE_MIN, le=POSITIVE_MAX)]
"""Within these bounds, all predictions are finite."""
PASSES_MAX, RTT_MS_MAX = 10**6, 60_000
PARAMETERS_MAX = 10**13
VARIATION = 0.1
OPTIONS = {
    "model": "--preset or --parameters",
    "compute": "--compute",
}
"""By key, the options that give it."""


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number, which may be written like 1e9."""


class Section(BaseModel):
    """A table of the file. It is strict: an unknown key is an error, and so is a text in place of a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSection(Section):
    preset: str | None = None
    parameters: Whole | None = Field(None, ge=1, le=PARAMETERS_MAX)


MEAN, TIMES = "<mean>", "<times>"
"""The two kinds of `compute.seconds`. pydantic adds them to the place of an error, and `_in_words` leaves them out."""
Times = Annotated[list[Positive], Field(min_length=1, max_length=TIMES_MAX)]


def _kind_of_seconds(value: object) -> str:
    return TIMES if isinstance(value, list) else MEAN


class ComputeSection(Section):
    seconds: Annotated[Annotated[Positive, Tag(MEAN)] | Annotated[Times, Tag(TIMES)], Discriminator(_kind_of_seconds)]
    variation: float | None = Field(None, ge=0, le=VARIATION_MAX)
    passes: Whole = Field(1, ge=1, le=PASSES_MAX)


class NodesSection(Section):
    count: Whole | None = Field(None, ge=1, le=NODES_MAX)
    per_host: Whole = Field(1, ge=1, le=NODES_MAX)
    up_mbit: Positive | None = None
    down_mbit: Positive | None = None
    rtt_ms: float | None = Field(None, ge=0, le=RTT_MS_MAX)
    lost_percent: float = Field(0, ge=0, lt=100)
    congestion: Literal["cubic", "reno", "bbr"] = "cubic"


class GroupSection(Section):
    """Equal hosts at one site."""

    hosts: Whole = Field(ge=1, le=NODES_MAX)
    site: str = ""
    speed: Positive = 1.0
    up_mbit: Positive
    down_mbit: Positive | None = None


class RoundTripSection(Section):
    between: Annotated[list[str], Field(min_length=2, max_length=2)]
    ms: float = Field(ge=0, le=RTT_MS_MAX)


class CoordinatorSection(Section):
    up_mbit: Positive = 1000.0
    down_mbit: Positive | None = None


class RatesSection(Section):
    """Millions a second: of parameters, and for `step` of operations in float64."""

    compress: Positive = Rates().compress / MEGA
    apply: Positive = Rates().apply / MEGA
    merge: Positive = Rates().merge / MEGA
    step: Positive = Rates().step / MEGA


class PlanFile(Section):
    model: ModelSection
    compute: ComputeSection
    nodes: NodesSection = NodesSection()
    group: Annotated[list[GroupSection], Field(max_length=NODES_MAX)] = []
    round_trip: Annotated[list[RoundTripSection], Field(max_length=NODES_MAX)] = []
    coordinator: CoordinatorSection = CoordinatorSection()
    rates: RatesSection = RatesSection()


def read_document(path: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, thousands of brackets
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    return document


def parse(document: dict[str, Any], source: str) -> PlanFile:
    """Raises ConfigError, which names every key that is wrong or missing."""
    try:
        return PlanFile.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(map(_in_words, error.errors()))}") from None


def _in_words(problem: ErrorDetails) -> str:
    key = ".".join(str(part) for part in problem["loc"] if part not in (MEAN, TIMES))
    if problem["type"] == "missing":
        return f"{key} is missing{f'; give {OPTIONS[key]}' if key in OPTIONS else ''}"
    if problem["type"] == "extra_forbidden":
        return f"{key}: there is no such key"
    if problem["type"] == "model_type":
        return f"{key} must be a section with keys of its own, not {problem['input']!r:.80}"
    text = f"must be {IN_WORDS[problem['type']]}" if problem["type"] in IN_WORDS else problem["msg"]
    return f"{key}: {text[0].lower()}{text[1:]}, not {problem['input']!r:.80}"


def setting_of(file: PlanFile) -> Setting:
    """Raises ConfigError."""
    network, speeds = _network(file)
    parameters, operations = _sizes(file.model)
    up_mbit = file.coordinator.up_mbit
    return Setting(
        parameters=parameters,
        step_operations=operations,
        compute=_compute(file.compute),
        network=network,
        speeds=speeds,
        coordinator_up_bits_s=MEGA * up_mbit,
        coordinator_down_bits_s=MEGA * (file.coordinator.down_mbit or up_mbit),
        passes=file.compute.passes,
        rates=Rates(**{name: MEGA * rate for name, rate in file.rates}),
    )


def _compute(section: ComputeSection) -> ComputeTimes:
    if isinstance(section.seconds, list):
        if section.variation is not None:
            text = "the measured times have a variation of their own; remove --variation (compute.variation), or give"
            raise ConfigError(f"{text} their mean as --compute (compute.seconds)")
        return ComputeTimes(tuple(section.seconds))
    return ComputeTimes.around(section.seconds, VARIATION if section.variation is None else section.variation)


def _sizes(section: ModelSection) -> tuple[int, float]:
    """The parameters, and the operations of a step of Muon: 0 if they are not known."""
    if (section.preset is None) == (section.parameters is None):
        raise ConfigError("give the model either as --preset (model.preset) or as --parameters (model.parameters)")
    if section.parameters is not None:
        return section.parameters, 0.0
    return sizes_of(section.preset or "")


def sizes_of(preset: str) -> tuple[int, float]:
    """The parameters, and the operations of a step of Muon. Raises ConfigError if there is no such preset."""
    if preset not in PRESETS:
        raise ConfigError(f"model.preset: {preset!r} does not exist; choose one of {', '.join(PRESETS)}")

    from thinwire_proto.exact.tiles import TileLayout  # noqa: PLC0415 - torch takes seconds
    from thinwire_proto.task import task_of  # noqa: PLC0415

    manifest = tuple(task_of(PRESETS[preset]).manifest())
    return TileLayout(manifest).parameters, MergedMuonSpec().step_flops(manifest)


def _network(file: PlanFile) -> tuple[Network, tuple[float, ...]]:
    """The lines, and the speed of each node."""
    nodes = file.nodes
    groups = file.group or [_only_group(nodes)]
    sites = sorted({group.site for group in groups})
    found = Network(
        up_bits_s=np.repeat([MEGA * group.up_mbit for group in groups], [group.hosts for group in groups]),
        down_bits_s=np.repeat(
            [MEGA * (group.down_mbit or group.up_mbit) for group in groups], [group.hosts for group in groups]
        ),
        sites=np.repeat([sites.index(group.site) for group in groups], [group.hosts for group in groups]),
        rtt_s=_round_trips(file, sites),
        per_host=nodes.per_host,
        loss=nodes.lost_percent / 100,
        congestion=nodes.congestion,
    )
    given = [key for key in ("up_mbit", "down_mbit") if file.group and getattr(nodes, key) is not None]
    if given:
        options = " and ".join(f"--{key.removesuffix('_mbit')} (nodes.{key})" for key in given)
        raise ConfigError(f"the groups have rates of their own; remove {options}, or change [[group]]")
    if file.group and nodes.count not in (None, found.nodes):
        raise ConfigError(f"nodes.count is {nodes.count}, and the groups have {found.nodes} nodes; remove nodes.count")
    if found.nodes > NODES_MAX:
        raise ConfigError(f"{found.nodes} nodes; the planner takes at most {NODES_MAX}")
    return found, tuple(group.speed for group in groups for _ in range(group.hosts * nodes.per_host))


def _only_group(nodes: NodesSection) -> GroupSection:
    if nodes.count is None or nodes.up_mbit is None or nodes.rtt_ms is None:
        raise ConfigError("give --nodes, --up and --rtt (nodes.count, nodes.up_mbit, nodes.rtt_ms)")
    if nodes.count % nodes.per_host:
        raise ConfigError(f"{nodes.count} nodes cannot be divided evenly into hosts of {nodes.per_host}")
    return GroupSection(hosts=nodes.count // nodes.per_host, up_mbit=nodes.up_mbit, down_mbit=nodes.down_mbit)


def _round_trips(file: PlanFile, sites: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[sites, sites]: those given, and nodes.rtt_ms between all others."""
    default = np.nan if file.nodes.rtt_ms is None else file.nodes.rtt_ms / 1000
    found = np.full((len(sites), len(sites)), default)
    for one in file.round_trip:
        unknown = [site for site in one.between if site not in sites]
        if unknown:
            raise ConfigError(f"round_trip: no group has the site {unknown[0]!r}; there are {', '.join(sites)}")
        first, second = (sites.index(site) for site in one.between)
        found[first, second] = found[second, first] = one.ms / 1000
    missing = np.argwhere(np.isnan(found))
    if len(missing):
        first, second = (sites[number] for number in missing[0])
        raise ConfigError(
            f"the round trip between {first!r} and {second!r} is missing; give a [[round_trip]], or nodes.rtt_ms for "
            "all that have none"
        )
    return found
