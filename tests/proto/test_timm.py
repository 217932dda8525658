"""Image classification: models of timm train without text, and those that keep statistics are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from support.toy_kinds import SlopesSpec
from support.two_nodes import TwoNodes
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.contract.data.images import CHANNELS
from thinwire_proto.contract.models.timm import TimmSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.timm import TimmTask
from thinwire_proto.task import Batch, DataSource, HeldOutSet

try:
    import timm
except ImportError as error:  # it needs torchvision
    timm = None
    WHY = str(error)
else:
    WHY = ""
needs_timm = pytest.mark.skipif(timm is None, reason=f"timm does not import: {WHY}")

SPECS = {
    "convolutions": TimmSpec(name="test_convnext", classes=3, image_size=32),
    "attention": TimmSpec(name="test_vit", classes=3, image_size=32, options='{"patch_size":8}'),
    "GroupNorm in place of BatchNorm": TimmSpec(
        name="resnet18", classes=3, image_size=96, options='{"channels":[32,32,32,64],"norm_layer":"groupnorm"}'
    ),
}


class Stripes(DataSource):
    """Noise with stripes whose direction is the class: across, down, or none."""

    def __init__(self, spec: TimmSpec) -> None:
        self._spec = spec

    def batch(self, positions: Sequence[int]) -> Batch:
        side = self._spec.image_size
        generator = torch.Generator().manual_seed(positions[0])
        images = 0.1 * torch.randn(len(positions), CHANNELS, side, side, generator=generator)
        labels = torch.tensor(list(positions)) % 3
        for image, label in zip(images, labels.tolist(), strict=True):
            stripes = image if label == 0 else image.transpose(1, 2)
            if label < 2:
                stripes[:, ::4] += 2
        return images, labels

    def held_out_sets(self) -> tuple[HeldOutSet, ...]:
        return (HeldOutSet("stripes", 9),)

    def held_out(self, name: str, samples: Sequence[int]) -> Batch:
        return self.batch(samples)

    def describe(self) -> str:
        return "stripes"


@needs_timm
@pytest.mark.parametrize("name", SPECS)
def test_nodes_learn_and_stay_equal(name: str) -> None:
    spec = SPECS[name]
    task = TimmTask(spec)
    schedule = {"learning_rate": 0.003, "warmup_steps": 1, "steps": 100}
    sections = {"model": spec, "data": SlopesSpec(), "schedule": schedule, "parameters": task.manifest()}
    contract = Contract.model_validate(sections)
    assert parse_contract(contract.written) == contract
    nodes = TwoNodes(contract, Stripes(spec), task.initial_state(1))
    nodes.train(15)
    nodes.check_exact()
    assert nodes.losses[-1] < 0.8 * nodes.losses[0]
    assert len(list(nodes.computes[0]._model.model.stages())) > 1


@needs_timm
def test_an_export_opens_in_timm(tmp_path: Path) -> None:
    spec = SPECS["attention"]
    task = TimmTask(spec)
    parameters = task.initial_state(1)
    exported = task.hugging_face(parameters)
    (tmp_path / "config.json").write_text(json.dumps(exported.config))
    save_file(exported.tensors, tmp_path / "model.safetensors")
    assert timm is not None
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    ours = task.model("cpu").inner
    ours.load_state_dict(task.load(tmp_path))
    extra = exported.tensors | {"head_dist.weight": torch.ones(3, 3)}
    save_file(extra, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"does not take, .*: head_dist\.weight"):
        task.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(exported.config | {"architecture": "test_vit2"}))
    with pytest.raises(ConfigError, match="architecture is 'test_vit2'; the run has 'test_vit'"):
        task.load(tmp_path)
    images, _ = Stripes(spec).batch(range(3))
    with torch.no_grad():
        assert torch.equal(theirs(images), ours.eval()(images))


@needs_timm
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "resnetv2_50", "convmixer_768_32"])
def test_a_model_that_keeps_statistics_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"BatchNorm\w*, which keeps running statistics .* resnet50_gn"):
        TimmTask(TimmSpec(name=name)).manifest()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "hf-hub:someone/model"}, "name"),
        ({"options": {"checkpoint_path": "/etc/passwd"}}, "checkpoint_path: is not allowed"),
        ({"options": {"pretrained": True}}, "pretrained: is not allowed"),
        ({"options": {"num_classes": 7}}, "num_classes: follows from"),
        ({"options": {"depths": [3, 10**9]}}, "depths: must be a number up to 65536"),
        ({"options": {"depths": [1] * 65}}, "depths: has more than 64"),
        ({"options": {"stem": {"a": 1}}}, "stem: must be a number"),
        ({"options": '{"depth": 3}'}, "is not canonical JSON"),
        ({"options": "[]"}, "is not canonical JSON of a table"),
        ({"options": 3}, "is not a table"),
        ({"image_size": 4}, "image_size"),
    ],
)
def test_an_unsafe_spec_is_refused_before_timm_sees_it(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TimmSpec.model_validate(keys)
