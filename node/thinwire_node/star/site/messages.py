"""Packs extractions, updates, contracts and settings into the heads and tensors that travel between ranks."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thinwire.compression.sent import Sent, WholeSent
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.exact.amendments import amended_by
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, Merged

Packed = tuple[dict[str, Any], list[Tensor]]


class Base(NamedTuple):
    """The frozen base of a run's models, which all ranks hold alike. bits: of a parameter; None: those of its files, or
    there is no base. folder: of its files, as the leader names it."""

    bits: int | None
    folder: Path


NO_BASE = Base(None, Path())


def pack_sent(sent: Sent) -> Packed:
    about: dict[str, Any] = {"extraction": sent.extraction, "has_codes": sent.codes is not None}
    codes = [] if sent.codes is None else [sent.codes]
    if isinstance(sent, WholeSent):
        return about | {"levels": sent.levels}, [sent.signs, sent.sizes, *codes]
    return about, [sent.components, sent.values, *codes]


def unpack_sent(about: dict[str, Any], tensors: Sequence[Tensor]) -> Sent:
    first, second, *rest = tensors
    codes = rest[0] if about["has_codes"] else None
    if "levels" in about:
        return WholeSent(first, second, about["extraction"], codes, about["levels"])
    return Sent(first, second, about["extraction"], codes)


def pack_all_sent(all_sent: Sequence[Sent]) -> Packed:
    packed = [pack_sent(sent) for sent in all_sent]
    tensors = [tensor for _, of_one in packed for tensor in of_one]
    return {"sent": [about for about, _ in packed]}, tensors


def unpack_all_sent(head: dict[str, Any], tensors: Sequence[Tensor]) -> list[Sent]:
    rest, found = list(tensors), []
    for about in head["sent"]:
        count = 3 if about["has_codes"] else 2
        found.append(unpack_sent(about, rest[:count]))
        rest = rest[count:]
    return found


def pack_update(update: Update) -> Packed:
    merged = update.merged
    about: dict[str, Any] = {"step": update.step, "rate": update.learning_rate, "decay": update.decay}
    if isinstance(merged, Levels):
        return about | {"levels": merged.levels}, [torch.from_numpy(merged.values), torch.from_numpy(merged.scales)]
    arrays = [merged.components, merged.values] + ([] if merged.scales is None else [merged.scales])
    return about, [torch.from_numpy(array) for array in arrays]


def unpack_update(about: dict[str, Any], tensors: Sequence[Tensor]) -> Update:
    arrays = [tensor.numpy() for tensor in tensors]
    merged = Levels(about["levels"], *arrays) if "levels" in about else Merged(*arrays)
    return Update(about["step"], about["rate"], about["decay"], merged)


def pack_contract(contract: Contract) -> list[str]:
    """The contract that the run began with, and its amendments, as they were written."""
    written = [contract.first.written, *(one.written for one in contract.amendments)]
    return [base64.b64encode(data).decode() for data in written]


def unpack_contract(texts: Sequence[str]) -> Contract:
    first, *amendments = [base64.b64decode(text) for text in texts]
    return amended_by(parse_contract(first), amendments)


def pack_base(base: Base) -> dict[str, Any]:
    return {"bits": base.bits, "folder": str(base.folder.resolve())}


def unpack_base(about: dict[str, Any]) -> Base:
    return Base(about["bits"], Path(about["folder"]))


def pack_at_once(micro_batch: MicroBatch) -> tuple[int, bool]:
    """The samples of a pass, and whether it checkpoints. All ranks begin with the same."""
    return micro_batch.samples, micro_batch.checkpoints
