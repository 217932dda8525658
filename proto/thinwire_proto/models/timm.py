"""Image classifiers of the library timm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thinwire_proto.blobs import Blobs
from thinwire_proto.contract.data.images import CHANNELS
from thinwire_proto.contract.models.timm import TimmSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra
from thinwire_proto.models.trained import SpecTask, trained
from thinwire_proto.models.weights_folder import CONFIG, read_json, read_tensors
from thinwire_proto.models.wrapped import Wrapped, bounded_build
from thinwire_proto.task import NO_BLOBS, TASKS, HuggingFaceModel


class Classifier(Wrapped):
    """An image classifier. Its parameters have timm's names."""

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy, in nats, of images [batch, channels, height, width] and their classes [batch]."""
        logits: Tensor = self.inner(images)
        return F.cross_entropy(logits.float(), labels)


@TASKS.register("timm")
class TimmTask(SpecTask[TimmSpec]):
    """The `Task` of the model kind `timm`."""

    def initial_state(self, seed: int, blobs: Blobs = NO_BLOBS) -> dict[str, Tensor]:
        """As timm draws them."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return trained(self.model("cpu"))

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> Classifier:
        return Classifier(_build(self._spec, device).train())

    def load(self, folder: Path) -> dict[str, Tensor]:
        if (folder / CONFIG).is_file():
            said = read_json(folder / CONFIG).get("architecture")
            if said not in (None, self._spec.name):
                raise ConfigError(f"{folder / CONFIG}: architecture is {said!r}; the run has {self._spec.name!r}")
        buffers = dict(_build(self._spec, "meta").named_buffers())
        return read_tensors(folder, self.manifest(), computed=buffers)

    def hugging_face(self, parameters: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS) -> HuggingFaceModel:
        """In timm's layout, which `timm.create_model("local-dir:FOLDER")` and transformers' `AutoModelForImage
        Classification` open."""
        spec = self._spec
        model: Any = _build(spec, "meta")
        size = {"input_size": [CHANNELS, spec.image_size, spec.image_size], "num_classes": spec.classes}
        config = {
            "architecture": spec.name,
            "num_classes": spec.classes,
            "num_features": model.num_features,
            "pretrained_cfg": {key: model.pretrained_cfg[key] for key in ("mean", "std", "interpolation")} | size,
            "model_args": _arguments(spec),
        }
        return HuggingFaceModel(
            json.loads(json.dumps(config)), {name: tensor.cpu() for name, tensor in parameters.items()}
        )


def _arguments(spec: TimmSpec) -> dict[str, Any]:
    """Arguments of this model beside the number of classes. Some models are built for one size of image."""
    timm = import_extra("timm", "images")
    fixed = timm.get_pretrained_cfg(spec.name).fixed_input_size
    arguments = {"in_chans": CHANNELS} | ({"img_size": spec.image_size} if fixed else {})
    return arguments | (json.loads(spec.options) if spec.options else {})


def _build(spec: TimmSpec, device: torch.device | str) -> nn.Module:
    """The model with timm's own first values, on `device`. Raises ConfigError."""
    timm = import_extra("timm", "images")
    if not timm.is_model(spec.name):
        close = get_close_matches(spec.name, timm.list_models(), 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; `timm.list_models()` has all"
        raise ConfigError(f"model.name: timm {timm.__version__} has no model {spec.name!r}{hint}")
    try:
        with bounded_build(), torch.device(device):
            built: nn.Module = timm.create_model(
                spec.name, pretrained=False, num_classes=spec.classes, **_arguments(spec)
            )
    except Exception as error:  # noqa: BLE001 - another library's code, with options that may be anything
        raise ConfigError(f"model: timm cannot build {spec.name} with these options: {error}") from None
    frozen = [name for name, parameter in built.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise ConfigError(f"{frozen[0]}: has no gradient, and its values are not in the contract; take another model")
    return built
