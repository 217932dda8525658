"""The contract: everything that must be equal on both ends of a swarm, and nothing else.

It is checked once, at the door, relations between fields included; written down in one canonical way (JSON, keys
sorted, no white space); and named by the SHA-256 of that. Settings of one process (paths, addresses, device, size of a
micro-batch) are not in it.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from thinwire_proto.errors import ConfigError, ContractError

CONTRACT_BYTES_MAX = 1 << 20
WEIGHT_SUM_MAX = 32_767
"""Bound on the sum of weights in a round, so that a merged vote is an int16 (design section 3.4)."""
TILE_EDGE = 64
TENSOR_ELEMENTS_MAX = 1 << 31
"""The fingerprint keeps a parameter's position in 31 bits."""


Magnitude = Literal["sign", "clipped", "tile"]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSpec(Section):
    """A decoder-only transformer; see `thinwire_proto.models`."""

    family: Literal["decoder"] = "decoder"
    vocabulary: int = Field(256, ge=2, le=1 << 20)
    context: int = Field(256, ge=2, le=1 << 17, description="tokens a sample")
    width: int = Field(128, ge=2, le=1 << 16)
    layers: int = Field(4, ge=1, le=512)
    heads: int = Field(4, ge=1, le=1024)
    hidden: int = Field(384, ge=1, le=1 << 18, description="inner width of the SwiGLU")
    tied: bool = Field(True, description="the output matrix is the embedding")

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelSpec:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2·heads; {self.width} is not one of {2 * self.heads}")
        return self


class DemoSpec(Section):
    """Decoupled momentum (arXiv 2411.19870): how momentum is kept and compressed."""

    transform: Literal["dct", "hadamard"] = "dct"
    k: int = Field(176, ge=1, le=TILE_EDGE**2, description="components kept of a tile, by k_policy")
    k_policy: Literal["fixed", "total"] = Field(
        "total", description="fixed: every node keeps k; total: the nodes of a round share k, whatever their number"
    )
    update_topk: int = Field(
        0, ge=0, le=TILE_EDGE**2, description="components an update keeps of a tile, the strongest; 0: all"
    )
    beta: float = Field(0.99, ge=0, lt=1, description="decay of the momentum in a step")
    alpha: float = Field(1.0, gt=0, le=1, description="share of what was sent that leaves the momentum")
    magnitude: Magnitude = Field(
        "clipped", description="of a step: see `decode`; tile: each tile's size travels with the votes"
    )
    precondition: Literal["none", "adam"] = Field("adam", description="what the gradient is divided by: √v̂, or nothing")
    precondition_beta: float = Field(0.99, ge=0, lt=1, description="decay of the second moment v in a step")

    @model_validator(mode="after")
    def _whole_updates(self) -> DemoSpec:
        if self.update_topk and self.magnitude == "tile":
            raise ValueError(
                'update_topk must be 0 with magnitude = "tile", whose updates keep all that is merged; '
                f"it is {self.update_topk}"
            )
        return self

    def k_of_round(self, nodes: int) -> int:
        """The k that a round with so many nodes announces. Where they share it, updates do not grow with the swarm."""
        return self.k if self.k_policy == "fixed" else max(1, self.k // max(1, nodes))


class RuleSpec(Section):
    """What a node does with its gradients between two cuts; see docs/local-rules.md."""

    name: Literal["demo", "local_adamw"] = "demo"
    outer_rate: float = Field(1.0, ge=1e-3, le=16, description="of updates with magnitudes: what their mean is times")
    micro_batch: int = Field(8, ge=1, le=1 << 20, description="local_adamw: samples of an inner step, at most")
    beta1: float = Field(0.9, ge=0, lt=1, description="local_adamw: decay of the inner first moment")
    beta2: float = Field(0.95, ge=0, lt=1, description="local_adamw: decay of the inner second moment")
    weight_decay: float = Field(0.0, ge=0, description="local_adamw: of an inner step")

    def micro_batch_max(self, allowed: int) -> int:
        """The most samples of a micro-batch, on a node whose owner allows so many."""
        return min(allowed, self.micro_batch) if self.name == "local_adamw" else allowed

    @model_validator(mode="after")
    def _of_the_rule(self) -> RuleSpec:
        if self.name == "demo":
            for key in ("micro_batch", "beta1", "beta2", "weight_decay"):
                if getattr(self, key) != RuleSpec.model_fields[key].default:
                    raise ValueError(f'{key} is for name = "local_adamw" alone; with name = "demo", leave it out')
        return self


class ScheduleSpec(Section):
    """Linear warm-up, then cosine to `floor` of the peak. Follows the step, not the round."""

    learning_rate: float = Field(2e-3, gt=0, le=1)
    warmup_steps: int = Field(50, ge=0)
    steps: int = Field(200, ge=1, le=1 << 31, description="updates until the run is complete")
    floor: float = Field(0.1, ge=0, le=1)
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _relations(self) -> ScheduleSpec:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps must be less than steps; {self.warmup_steps} is not less than {self.steps}")
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError("learning_rate · weight_decay must be less than 1, or parameters change their sign")
        return self


class RoundSpec(Section):
    """The clock and what a node may do within one beat of it."""

    pace: Literal["barrier", "clock"] = "barrier"
    length_ms: int = Field(30_000, ge=50, le=86_400_000, description="T: a round is over by then at the latest")
    base_age_max: int = Field(0, ge=0, le=16, description="steps that a base may lie behind its round; 1 at pace clock")
    momentum_age_max: int = Field(100, ge=1, description="steps after which an absent node's momentum is worth nothing")
    min_contributions: int = Field(1, ge=1)
    samples: int = Field(8, ge=1, le=1 << 20, description="samples that have the full weight; barrier: a node's share")
    weight_max: int = Field(8, ge=1, le=WEIGHT_SUM_MAX)
    nodes_max: int = Field(1024, ge=1, le=8192)

    @model_validator(mode="before")
    @classmethod
    def _base_age(cls, given: Any) -> Any:
        """Where nobody waits for anybody, nobody waits for the update either."""
        if isinstance(given, dict) and given.get("pace") == "clock":
            return {"base_age_max": 1} | given
        return given

    @property
    def length_s(self) -> float:
        return self.length_ms / 1000

    @property
    def lease_samples(self) -> int:
        """What a node is given in advance: a round's samples; if it does not wait for the update, the next one's, and
        as many again for the time in which others are waited for."""
        return self.samples * (3 if self.base_age_max else 1)

    @model_validator(mode="after")
    def _relations(self) -> RoundSpec:
        if self.nodes_max * self.weight_max > WEIGHT_SUM_MAX:
            raise ValueError(
                f"nodes_max · weight_max must be at most {WEIGHT_SUM_MAX}, so that merged votes fit an int16; "
                f"{self.nodes_max} · {self.weight_max} is {self.nodes_max * self.weight_max}"
            )
        if self.min_contributions > self.nodes_max:
            raise ValueError(
                f"min_contributions must be at most nodes_max; {self.min_contributions} is more than {self.nodes_max}"
            )
        return self


class DataSpec(Section):
    """Which text is trained on. `corpus_hash` and the sizes are empty in a run file: the coordinator works them out."""

    tokenizer: Literal["bytes"] = "bytes"
    seed: int = Field(1, ge=0, lt=1 << 63, description="of the order of samples")
    corpus_hash: str = Field("", pattern="^([0-9a-f]{64})?$", description="SHA-256 of the corpus, uncompressed")
    corpus_bytes: int = Field(0, ge=0, le=1 << 40)
    train_bytes: int = Field(0, ge=0, le=1 << 40)


class Parameter(Section):
    """One trained tensor; tied ones are listed once, those without gradient not at all."""

    name: str = Field(min_length=1, max_length=256)
    shape: tuple[int, ...] = Field(max_length=8, strict=False)  # a list in JSON

    @model_validator(mode="after")
    def _bounded(self) -> Parameter:
        elements = 1
        for size in self.shape:
            elements *= size
            if size < 1 or elements >= TENSOR_ELEMENTS_MAX:
                raise ValueError(f"{self.name}: shape {self.shape} must have 1 to 2³¹ − 1 elements")
        return self


class RunSpec(Section):
    """What an organizer writes in RUN.toml; every field has a default."""

    model: ModelSpec = ModelSpec()
    demo: DemoSpec = DemoSpec()
    rule: RuleSpec = RuleSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    round: RoundSpec = RoundSpec()
    data: DataSpec = DataSpec()

    @model_validator(mode="before")
    @classmethod
    def _of_the_rule(cls, given: Any) -> Any:
        """A difference of parameters has a size, and has been through AdamW already."""
        if not isinstance(given, dict):
            return given
        rule, demo = given.get("rule"), given.get("demo", {})
        name = rule.get("name") if isinstance(rule, dict) else getattr(rule, "name", None)
        if name == "local_adamw" and isinstance(demo, dict):
            return given | {"demo": {"magnitude": "tile", "precondition": "none"} | demo}
        return given

    @model_validator(mode="after")
    def _relations(self) -> RunSpec:
        if self.rule.name == "local_adamw" and self.demo.magnitude != "tile":
            raise ValueError(
                f'demo.magnitude must be "tile" for rule.name = "local_adamw", whose differences have a size; it is '
                f'"{self.demo.magnitude}"'
            )
        if self.rule.name == "local_adamw" and self.demo.precondition != "none":
            raise ValueError(
                f'demo.precondition must be "none" for rule.name = "local_adamw", which preconditions each inner step; '
                f'it is "{self.demo.precondition}"'
            )
        if self.demo.magnitude != "tile" and self.rule.outer_rate != 1.0:
            raise ValueError(
                'rule.outer_rate needs demo.magnitude = "tile": any other steps by schedule.learning_rate; '
                f"it is {self.rule.outer_rate}"
            )
        if self.schedule.learning_rate * self.rule.weight_decay >= 1:
            raise ValueError("schedule.learning_rate · rule.weight_decay must be less than 1")
        if self.data.tokenizer == "bytes" and self.model.vocabulary < 256:
            raise ValueError(
                f"model.vocabulary must be at least 256 for data.tokenizer = bytes; it is {self.model.vocabulary}"
            )
        return self


class Contract(RunSpec):
    """A run's specification with what follows from it: the manifest of parameters and the identity of the data."""

    version: Literal[1] = 1
    parameters: tuple[Parameter, ...] = Field(min_length=1, max_length=1 << 16, strict=False)

    @model_validator(mode="after")
    def _complete(self) -> Contract:
        if not self.data.corpus_hash:
            raise ValueError("data.corpus_hash must name the corpus")
        if self.data.train_bytes <= self.model.context:
            raise ValueError(
                f"data.train_bytes must be more than model.context; {self.data.train_bytes} holds no sample "
                f"of {self.model.context} tokens"
            )
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names):
            raise ValueError("parameters must have different names")
        return self

    def canonical(self) -> bytes:
        """The one way to write this contract down; `hash` is the SHA-256 of it."""
        return canonical_json(self.model_dump(mode="json"))

    @cached_property
    def hash(self) -> bytes:
        """32 bytes."""
        return hashlib.sha256(self.canonical()).digest()


def canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def parse_run(document: dict[str, Any], source: str) -> RunSpec:
    """Check a run file's contents. `source` names it in the ConfigError that a bad one raises."""
    try:
        return RunSpec.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_plain(error)}") from None


def parse_contract(data: bytes) -> Contract:
    """Read a canonical contract. Raises ContractError if it is none, or is not written in the canonical way."""
    if len(data) > CONTRACT_BYTES_MAX:
        raise ContractError(f"a contract has at most {CONTRACT_BYTES_MAX} bytes; this has {len(data)}")
    try:
        contract = Contract.model_validate_json(data)
    except ValidationError as error:
        raise ContractError(f"this is not a contract that this version reads: {_plain(error)}") from None
    if contract.canonical() != data:
        raise ContractError("the contract is not written in the canonical way; the two ends run different versions")
    return contract


def differences(ours: Contract, theirs: Contract) -> list[str]:
    """The fields in which two contracts differ, in words: `demo.k: 32 here, 64 there`."""
    left_out = {"parameters"} if ours.model != theirs.model else set()  # they follow from the model
    here, there = (contract.model_dump(mode="json", exclude=left_out) for contract in (ours, theirs))
    return _differences(here, there, "")


def _differences(ours: Any, theirs: Any, path: str) -> list[str]:
    if ours == theirs:
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found: list[str] = []
        for key in sorted(ours.keys() | theirs.keys()):
            found += _differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and path == "parameters":
        by_name = [{entry["name"]: entry["shape"] for entry in side} for side in (ours, theirs)]
        if by_name[0] != by_name[1]:
            return _differences(by_name[0], by_name[1], path)
    return [f"{path}: {ours} here, {theirs} there"]


def _plain(error: ValidationError) -> str:
    """pydantic's findings in one line: the field's dotted name, what is wrong, and what was given."""
    found = []
    for entry in error.errors():
        field = ".".join(str(part) for part in entry["loc"])
        given = "" if isinstance(entry["input"], dict | BaseModel) else f" (it is {entry['input']!r:.80})"
        if entry["type"] == "extra_forbidden":
            found.append(f"{field}: there is no such key")
        elif entry["type"] == "value_error":
            found.append(f"{field + ': ' if field else ''}{entry['ctx']['error']}")
        else:
            found.append(f"{field}: {entry['msg'][0].lower()}{entry['msg'][1:]}{given}")
    return "; ".join(found)
