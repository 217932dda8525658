"""Refuses models that keep running statistics, such as BatchNorm.

Replicas are equal because they hold nothing but parameters, which only updates change. Running statistics change with
each node's own samples. No update carries them, so every node would have another model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from thinwire_proto.errors import ConfigError

COUNT = "num_batches_tracked"
"""The buffer in which torch counts the batches that went into running statistics; other libraries have it too."""
INSTEAD = (
    "take a model with GroupNorm, LayerNorm or RMSNorm (in timm: resnet50_gn, convnext_tiny, "
    "vit_tiny_patch16_224, mixer_s32_224), or track_running_stats=False"
)


class HasModules(Protocol):
    def modules(self) -> Iterator[nn.Module]: ...


def refuse_running_statistics(model: HasModules) -> None:
    """Raise ConfigError if a module of the model keeps running statistics."""
    for module in model.modules():
        is_norm = isinstance(module, _NormBase) and module.running_mean is not None
        if is_norm or getattr(module, COUNT, None) is not None:
            raise ConfigError(
                f"this model has a {type(module).__name__}, which keeps running statistics of its inputs; they are no "
                f"parameters, so the nodes' models would differ. Instead, {INSTEAD}"
            )
