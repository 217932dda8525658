"""A LoRA adapter (arXiv 2106.09685) on a frozen model of transformers, as peft builds it.

The base's weights are blobs of the contract. Each node fetches them once, and keeps them in memory in as many bits as
it has room for (`frozen_base`): memory decides which machines can take part. The adapter is float32, so its replicas
are equal whatever the bits.

Preferences are learned by DPO (arXiv 2305.18290). Its reference is the model without the adapter, so no second model is
in memory: a pass over the base alone, without gradients, comes before each pass.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thinwire_proto.blobs import Blob, Blobs, blob_of
from thinwire_proto.contract import ModelSpec, Parameter
from thinwire_proto.contract.models.lora import ALL_LINEAR, FILE_NAME, BaseFile, LoraSpec
from thinwire_proto.data.conversations import mean_loss, pairs_in, preferred_by
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.extras import import_extra
from thinwire_proto.models.frozen_base import (
    WIDTHS,
    dtype_of_files,
    empty_base,
    load_base,
    load_whole_base,
    one_dtype,
    shared_base,
)
from thinwire_proto.models.trained import SpecTask
from thinwire_proto.models.transformers_models import (
    CausalLM,
    build,
    canonical_config,
    check_whole,
    choose_context,
    hub_config,
    in_files,
    sizes_of,
)
from thinwire_proto.models.weights_folder import CONFIG, read_json, read_tensors, weight_files
from thinwire_proto.task import MODEL_MAKERS, NO_BLOBS, TASKS, HuggingFaceModel

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
CHANGING = ("r", "lora_alpha", "use_rslora", "use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern")
"""Keys of ADAPTER_CONFIG that change what an adapter computes, and that shapes may not show."""
ADAPTER = ".default"
"""peft puts the adapter's name into the names of its parameters, and leaves it out of its files."""
HALF = ("bfloat16", "float16")
"""Values of `dtype` in a config whose files have two bytes a parameter."""
UNKNOWN_HASH = "0" * 64
FILES_OF_32_BITS = 3
"""Bytes of the base's files for each of its parameters, above which they are float32."""


class Adapted(CausalLM):
    """A model with an adapter. Its parameters have the names of peft's files."""

    def __init__(self, inner: nn.Module, spec: LoraSpec) -> None:
        super().__init__(inner, spec.context)
        self._beta = spec.beta
        layers = import_extra("peft.tuners.tuners_utils", "lora").BaseTunerLayer
        self.adapters: list[Any] = [module for module in inner.modules() if isinstance(module, layers)]

    def loss(self, tokens: Tensor, marks: Tensor | None = None) -> Tensor:
        """See `thinwire_proto.data.conversations.mean_loss`; of preferences, see `LearnsPreferences`."""
        if marks is None or not pairs_in(marks):
            return super().loss(tokens, marks)
        return F.softplus(-self.margins(tokens, marks)).mean()

    def margins(self, tokens: Tensor, marks: Tensor) -> Tensor:
        """See `thinwire_proto.task.LearnsPreferences`: β · (log π(c)/ref(c) − log π(r)/ref(r)) of the chosen response c
        and the rejected r of each pair."""
        with self._base_alone(), torch.no_grad():
            reference = self._logarithms(tokens, marks)
        return self._beta * preferred_by(self._logarithms(tokens, marks) - reference, marks)

    def _logarithms(self, tokens: Tensor, marks: Tensor) -> Tensor:
        """Of the probability of each token that counts: float32 [counted]."""
        return -mean_loss(self.logits(tokens[:, :-1], marks[:, :-1]), tokens, marks, "none")

    @contextmanager
    def _base_alone(self) -> Iterator[None]:
        """The model without its adapter and without dropout."""
        # not peft's `disable_adapter`: it also changes which of the caller's parameters have gradients
        was_training = self.training
        self.eval()
        for layer in self.adapters:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self.adapters:
                layer._disable_adapters = False
            self.train(was_training)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield name.replace(ADAPTER, ""), parameter


@TASKS.register("lora")
class LoraTask(SpecTask[LoraSpec]):
    """The `Task` of the model kind `lora`. bits: of the base's parameters; None: so many that they lose nothing."""

    def __init__(self, spec: LoraSpec, bits: int | None = None) -> None:
        super().__init__(spec)
        self._bits = bits

    @property
    def base_bits(self) -> tuple[int, ...]:
        files = sum(blob.size for blob in self._spec.blobs)
        return WIDTHS if files > FILES_OF_32_BITS * _parameters_of(self._spec.config) else WIDTHS[1:]

    def in_bits(self, bits: int) -> LoraTask:
        return LoraTask(self._spec, bits)

    def blobs(self) -> tuple[Blob, ...]:
        return self._spec.blobs

    def blob_names(self) -> dict[Blob, str]:
        return {Blob(file.hash, file.size): file.name for file in self._spec.files}

    def blob_urls(self) -> tuple[str, ...]:
        return self._spec.base_urls

    def initial_state(self, seed: int, blobs: Blobs = NO_BLOBS) -> dict[str, Tensor]:
        """As peft draws them: the first matrix uniformly, the second 0, so that the adapter changes nothing."""
        generator = torch.Generator().manual_seed(seed)
        return {parameter.name: _drawn(parameter, generator) for parameter in self.manifest()}

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> Adapted:
        spec = self._spec
        if torch.device(device).type == "meta":
            base = empty_base(spec.config, self._bits or WIDTHS[0])
        else:
            paths = [blobs.path(blob) for blob in spec.blobs]
            if self._bits is None:
                loaded = shared_base if torch.device(device).type == "cpu" else load_whole_base
                base = loaded(paths, spec.config, dtype_of_files(paths)).to(device)
            else:
                base = load_base(paths, spec.config, self._bits, device)
        return Adapted(_with_adapter(base, spec), spec)

    def load(self, folder: Path) -> dict[str, Tensor]:
        """Read an adapter in peft's layout."""
        if (folder / ADAPTER_CONFIG).is_file():
            theirs, ours = read_json(folder / ADAPTER_CONFIG), self.hugging_face({}).adapter or {}
            for key in CHANGING:
                if theirs.get(key, ours.get(key)) != ours.get(key):
                    said = f"{key} is {theirs[key]!r}; the adapter of this run has {ours[key]!r}"
                    raise ConfigError(f"{folder / ADAPTER_CONFIG}: {said}")
        return read_tensors(folder, self.manifest(), [folder / ADAPTER_WEIGHTS])

    def hugging_face(self, parameters: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS) -> HuggingFaceModel:
        """The adapter alone, as `peft.PeftModel` opens it on the base."""
        config = _with_adapter(build(self._spec.config, "meta"), self._spec).peft_config["default"].to_dict()
        config |= {"target_modules": sorted(config["target_modules"]), "inference_mode": True}
        adapter = json.loads(json.dumps(config, default=str))
        return HuggingFaceModel(json.loads(self._spec.config), {n: t.cpu() for n, t in parameters.items()}, adapter)

    def merged(self, parameters: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS) -> HuggingFaceModel:
        """The base with the adapter merged into it, in the dtype of the base's files, and in float32 if they have
        several. Needs memory for the base in that dtype."""
        paths = [blobs.path(blob) for blob in self._spec.blobs]
        dtype = one_dtype(paths)
        model = Adapted(_with_adapter(load_whole_base(paths, self._spec.config, dtype), self._spec), self._spec)
        adapted: Any = model.inner
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(parameters[name])
            for layer in model.adapters:  # not peft's `merge_and_unload`, which rounds the change before it is added
                weight = layer.get_base_layer().weight
                weight.copy_(weight.float() + layer.get_delta_weight(ADAPTER[1:]))
            whole = adapted.unload()
        tensors = {name: parameter.detach() for name, parameter in whole.named_parameters()}
        named = {"architectures": [type(whole).__name__], "dtype": str(dtype).removeprefix("torch.")}
        return HuggingFaceModel(hub_config(self._spec.config) | named, in_files(whole, tensors))


def complete(spec: ModelSpec, go_on: Callable[[], None]) -> tuple[LoraSpec, Mapping[Blob, Path]]:
    """See `thinwire_proto.task.complete_model`. Reads the whole base to hash it."""
    assert isinstance(spec, LoraSpec)
    found = _of_config(spec)
    blobs = {}
    for path in _checked_files(found):
        go_on()
        blobs[blob_of(path)] = path
    files = tuple(BaseFile(name=_web_name(path), hash=blob.hash, size=blob.size) for blob, path in blobs.items())
    return found.model_copy(update={"files": files}), blobs


def planned(spec: LoraSpec) -> LoraSpec:
    """The contract's model section for a plan, which hashes no file and needs none: where the base's weights are not
    there yet, it has one file of the size that the config's dtype gives. Raises ConfigError."""
    found = _of_config(spec)
    if has_weights(spec):
        sizes = [path.stat().st_size for path in _checked_files(found)]
    else:
        config = read_json(Path(spec.base) / CONFIG)
        is_half = config.get("dtype", config.get("torch_dtype")) in HALF
        sizes = [(2 if is_half else 4) * _parameters_of(found.config)]
    files = tuple(BaseFile(hash=UNKNOWN_HASH, size=size) for size in sizes)
    return found.model_copy(update={"files": files})


def has_weights(spec: LoraSpec) -> bool:
    """Whether the base's folder has any weights."""
    return any(Path(spec.base).glob("*.safetensors"))


def _of_config(spec: LoraSpec) -> LoraSpec:
    """The spec with all that the base's `config.json` says. Raises ConfigError."""
    if not spec.base:
        raise ConfigError("model.base: a folder with config.json and safetensors is needed for model.kind = 'lora'")
    path = Path(spec.base) / CONFIG
    text = canonical_config(read_json(path), str(path))
    vocabulary, longest = sizes_of(text)
    context = choose_context(spec.context, longest, str(path))
    return spec.model_copy(update={"config": text, "vocabulary": vocabulary, "context": context})


def _checked_files(spec: LoraSpec) -> list[Path]:
    """The base's files, which hold the tensors of the config. Raises ConfigError."""
    paths = weight_files(Path(spec.base))
    dtype_of_files(paths)
    check_whole(Path(spec.base), spec.config)
    return paths


MODEL_MAKERS["lora"] = complete


def _web_name(path: Path) -> str:
    """The name of a file where others may have it too; empty if it is none for an address."""
    return path.name if re.fullmatch(FILE_NAME, path.name) else ""


@lru_cache(maxsize=16)
def _parameters_of(config: str) -> int:
    return sum(tensor.numel() for tensor in build(config, "meta").parameters())


def _with_adapter(base: nn.Module, spec: LoraSpec) -> Any:
    """Freeze a base and add the adapter, with arbitrary values. Raises ConfigError if there is no such target."""
    peft = import_extra("peft", "lora")
    base.name_or_path = spec.base_name or None  # type: ignore[assignment] # where peft looks for it
    config = peft.LoraConfig(
        r=spec.rank,
        lora_alpha=int(spec.alpha) if spec.alpha.is_integer() else spec.alpha,  # peft's own type is int
        lora_dropout=spec.dropout,
        target_modules=ALL_LINEAR[0] if spec.targets == ALL_LINEAR else list(spec.targets),
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft and transformers deprecate each other's names
            return peft.get_peft_model(base, config).train()
    except ValueError as error:
        linear = {name.rpartition(".")[2] for name, module in base.named_modules() if isinstance(module, nn.Linear)}
        raise ConfigError(f"model.targets: {error}; the base has {', '.join(sorted(linear))}") from None


def _drawn(parameter: Parameter, generator: torch.Generator) -> Tensor:
    """The first values of one of peft's tensors."""
    tensor = torch.zeros(parameter.shape)
    if ".lora_A." in parameter.name:
        return nn.init.kaiming_uniform_(tensor, a=math.sqrt(5), generator=generator)
    if parameter.name.endswith(".lora_embedding_B"):
        return nn.init.normal_(tensor, generator=generator)
    return tensor
