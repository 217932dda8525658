"""A transformer in Llama's layout (arXiv 2302.13971): its tensors have the names and shapes of transformers'
`LlamaForCausalLM`, so what a run exports opens there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from thinwire_proto.blobs import Blobs
from thinwire_proto.contract.models.llama import LlamaSpec
from thinwire_proto.data.conversations import mean_loss, positions_of, visible, weight_of
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.trained import SpecTask, trained
from thinwire_proto.models.transformers_models import choose_context
from thinwire_proto.models.weights_folder import (
    COMPUTED,
    CONFIG,
    NONE_TIED,
    check_config,
    differences,
    dtypes,
    read_json,
    read_tensors,
    refuse_keys,
    rope_of,
    weight_files,
)
from thinwire_proto.task import NO_BLOBS, TASKS, HuggingFaceModel


def angles(length: int, head_width: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles, each [length, head_width / 2]."""
    exponent = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    of_each = torch.outer(torch.arange(length, device=device, dtype=torch.float32), base**-exponent)
    return of_each.cos(), of_each.sin()


def packed_angles(cos: Tensor, sin: Tensor, marks: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """cos and sin for packed conversations, each [batch, 1, length, head_width / 2], and what each token sees, bool
    [batch, 1, length, length]. Without marks, the same cos and sin, and None: each token sees all before it."""
    if marks is None:
        return cos, sin, None
    positions = positions_of(marks)
    return cos[positions][:, None], sin[positions][:, None], visible(marks)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + half) of the last dimension of x [batch, heads, length, head_width]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


INITIAL_STD = 0.02


@torch.no_grad()
def draw_weights(model: nn.Module, layers: int, residual: tuple[str, ...], generator: torch.Generator) -> None:
    """Draw normal weights, and set those of norms to 1.

    residual: endings of the names of the matrices that write to the residual stream; these are scaled by 1/√(2·layers).
    """
    for name, tensor in model.named_parameters():
        if tensor.dim() == 1:
            tensor.fill_(1.0)
            continue
        std = INITIAL_STD / math.sqrt(2 * layers) if name.endswith(residual) else INITIAL_STD
        tensor.normal_(0.0, std, generator=generator)


DEFAULTS = {"num_attention_heads": 32, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
"""What transformers takes for keys that a config leaves out, where neither shapes nor other keys show it."""
FIXED = ("model_type", "rope_parameters", "hidden_act", "attention_bias", "mlp_bias", "head_dim")
"""Keys in which a model of transformers may differ from all of this kind; of `rope_parameters`, the base is free."""
SIZES = {
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
}
"""Keys of a config that the kind `hf` reads with transformers' defaults, and `spec_of` does not guess."""


class Linear(nn.Linear):
    """A matrix without bias, and without the values that torch draws: they are always replaced."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        pass


class Kept:
    """The keys and values of one layer, of all tokens so far: each [batch, kv_heads, length, head_width]."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def with_new(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep those of new tokens too, and return all."""
        if self._keys is not None and self._values is not None:
            keys, values = torch.cat([self._keys, keys], 2), torch.cat([self._values, values], 2)
        self._keys, self._values = keys, values
        return keys, values


class Cache:
    """Keys and values of a text. With them, the logits after one more token need the computation of one token."""

    def __init__(self, layers: int) -> None:
        self.length = 0
        """Tokens so far."""
        self.layers = [Kept() for _ in range(layers)]


class Attention(nn.Module):
    """Causal self-attention with rotary positions (arXiv 2104.09864) and grouped queries (arXiv 2305.13245)."""

    def __init__(self, spec: LlamaSpec) -> None:
        super().__init__()
        self._head_width = spec.head_width
        self._group = spec.heads // spec.kv_heads
        self.q_proj = Linear(spec.width, spec.heads * spec.head_width)
        self.k_proj = Linear(spec.width, spec.kv_heads * spec.head_width)
        self.v_proj = Linear(spec.width, spec.kv_heads * spec.head_width)
        self.o_proj = Linear(spec.heads * spec.head_width, spec.width)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, kept: Kept | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """kept: that of the tokens before; x is then one token, or the first ones. seen: what each token sees, bool
        [batch, 1, length, length]; by default all before it."""
        q = rotate(self._heads(self.q_proj(x)), cos, sin)
        k = rotate(self._heads(self.k_proj(x)), cos, sin)
        v = self._heads(self.v_proj(x))
        if kept is not None:
            k, v = kept.with_new(k, v)
        causal = seen is None and q.shape[2] == k.shape[2]  # otherwise q is the last token, which sees all
        k, v = self._for_each_query(k), self._for_each_query(v)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """[batch, length, heads · head_width] as [batch, heads, length, head_width]."""
        return x.view(*x.shape[:2], -1, self._head_width).transpose(1, 2)

    def _for_each_query(self, x: Tensor) -> Tensor:
        """Repeat each of the heads of keys or values for its group of query heads.

        Not `enable_gqa`: without bfloat16, CUDA has only the slow kernel for it, with a matrix of length²."""
        if self._group == 1:
            return x
        return x[:, :, None].expand(-1, -1, self._group, -1, -1).flatten(1, 2)


class SwiGLU(nn.Module):
    """Gated feed-forward layer (arXiv 2002.05202)."""

    def __init__(self, spec: LlamaSpec) -> None:
        super().__init__()
        self.gate_proj = Linear(spec.width, spec.hidden)
        self.up_proj = Linear(spec.width, spec.hidden)
        self.down_proj = Linear(spec.hidden, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and feed-forward, each after a norm and with a residual connection."""

    def __init__(self, spec: LlamaSpec) -> None:
        super().__init__()
        self.self_attn = Attention(spec)
        self.mlp = SwiGLU(spec)
        self.input_layernorm = nn.RMSNorm(spec.width, eps=spec.norm_epsilon)
        self.post_attention_layernorm = nn.RMSNorm(spec.width, eps=spec.norm_epsilon)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, kept: Kept | None = None, seen: Tensor | None = None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, kept, seen)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Body(nn.Module):
    """All but the output matrix: maps tokens [batch, length] to [batch, length, width]."""

    def __init__(self, spec: LlamaSpec) -> None:
        super().__init__()
        self._spec = spec
        # pass in a tensor: drawing one on "meta" would load torch's compiler, which takes seconds at each node's start
        self.embed_tokens = nn.Embedding.from_pretrained(torch.empty(spec.vocabulary, spec.width), freeze=False)  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_epsilon)

    def forward(self, tokens: Tensor, cache: Cache | None = None, marks: Tensor | None = None) -> Tensor:
        """cache: of the tokens before. These are then the next one, or the first ones. marks: of packed conversations,
        [batch, length]."""
        begin = 0 if cache is None else cache.length
        end = begin + tokens.shape[1]
        cos, sin = angles(end, self._spec.head_width, self._spec.rope_theta, tokens.device)
        cos, sin, seen = packed_angles(cos[begin:], sin[begin:], marks)
        x = self.embed_tokens(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, cos, sin, None if cache is None else cache.layers[number], seen)
        if cache is not None:
            cache.length = end
        return self.norm(x)  # type: ignore[no-any-return]


class Llama(nn.Module):
    """The model: maps tokens [batch, length] to logits [batch, length, vocabulary]."""

    def __init__(self, spec: LlamaSpec) -> None:
        super().__init__()
        self.spec = spec
        self.model = Body(spec)
        self.lm_head = Linear(spec.width, spec.vocabulary)
        if spec.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    packs = True
    weight = staticmethod(weight_of)

    def forward(self, tokens: Tensor, marks: Tensor | None = None) -> Tensor:
        return self.lm_head(self.model(tokens, None, marks))  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor, marks: Tensor | None = None) -> Tensor:
        """See `thinwire_proto.data.conversations.mean_loss`."""
        return mean_loss(self(tokens[:, :-1], None if marks is None else marks[:, :-1]), tokens, marks)

    def stages(self) -> Iterable[nn.Module]:
        """See `thinwire_proto.task.Model`."""
        return self.model.layers

    def next_logits(self, tokens: Tensor) -> Tensor:
        """See `thinwire_proto.task.Writes`. Uses the last `context` tokens."""
        last = self.model(tokens[None, -self.spec.context :])[0, -1]
        return self.lm_head(last).float()  # type: ignore[no-any-return]

    def continued_logits(self, tokens: Tensor, cache: Cache | None) -> tuple[Tensor, Cache | None]:
        """See `thinwire_proto.task.WritesOn`."""
        if len(tokens) > self.spec.context:
            return self.next_logits(tokens), None  # the context moves on, and with it all that was computed
        if cache is None or cache.length != len(tokens) - 1:
            cache = Cache(self.spec.layers)
        last = self.model(tokens[None, cache.length :], cache)[0, -1]
        return self.lm_head(last).float(), cache

    def initialise(self, generator: torch.Generator) -> None:
        """See `draw_weights`."""
        draw_weights(self, self.spec.layers, ("o_proj.weight", "down_proj.weight"), generator)


@TASKS.register("llama")
class LlamaTask(SpecTask[LlamaSpec]):
    """The `Task` of the model kind `llama`."""

    def initial_state(self, seed: int, blobs: Blobs = NO_BLOBS) -> dict[str, Tensor]:
        model = self.model("cpu")
        model.initialise(torch.Generator().manual_seed(seed))
        return trained(model)

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> Llama:
        with torch.device(device):
            return Llama(self._spec)

    def load(self, folder: Path) -> dict[str, Tensor]:
        check_config(folder, self.config(), DEFAULTS, FIXED)
        tied = {"lm_head.weight": "model.embed_tokens.weight"} if self._spec.tied else NONE_TIED
        return read_tensors(folder, self.manifest(), tied=tied)

    def hugging_face(self, parameters: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS) -> HuggingFaceModel:
        config = self.config()
        config |= {"architectures": ["LlamaForCausalLM"], "rope_theta": self._spec.rope_theta, "dtype": "float32"}
        # the defaults of transformers are those of Llama's own tokenizer
        config |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        return HuggingFaceModel(config, {name: tensor.cpu() for name, tensor in parameters.items()})

    def config(self) -> dict[str, object]:
        """The keys of `config.json` that follow from the spec."""
        spec = self._spec
        return {
            "model_type": "llama",
            "vocab_size": spec.vocabulary,
            "max_position_embeddings": spec.context,
            "hidden_size": spec.width,
            "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.kv_heads,
            "head_dim": spec.head_width,
            "intermediate_size": spec.hidden,
            "tie_word_embeddings": spec.tied,
            "rms_norm_eps": spec.norm_epsilon,
            "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
        }


def spec_of(folder: Path, *, has_weights: bool) -> LlamaSpec:
    """The spec of a folder's model, with as long a context as the kind `hf` takes by default.

    has_weights: whether the run begins from the folder's weights; otherwise it draws them.

    Raises ConfigError, with the first thing that differs, if a model of this kind would not compute exactly the same.
    """
    config = read_json(folder / CONFIG)
    if config.get("model_type") != "llama":
        raise ConfigError(f"model_type is {config.get('model_type')!r}")
    refuse_keys(config, CONFIG)
    found = {ours: config.get(theirs) for ours, theirs in SIZES.items()}
    for key, value in found.items():
        if not isinstance(value, int):
            raise ConfigError(f"{CONFIG} has no number {SIZES[key]}")
    given = found | {"context": choose_context(0, config["max_position_embeddings"], CONFIG)}
    given |= {"kv_heads": _given(config, "num_key_value_heads", found["heads"])}
    given |= {"tied": _given(config, "tie_word_embeddings"), "norm_epsilon": _given(config, "rms_norm_eps")}
    try:
        spec = LlamaSpec.model_validate(given | {"rope_theta": rope_of(config)["rope_theta"]})
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(": ".join([*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")])) from None
    ours = LlamaTask(spec).config() | {"attention_dropout": 0}
    for key, said, value in differences(config, ours if has_weights else ours | {"initializer_range": INITIAL_STD}, {}):
        raise ConfigError(f"{key} is {said!r} and not {value!r}")
    if has_weights:
        _check_names(folder, spec)
    return spec


def _given(config: Mapping[str, Any], key: str, default: object = None) -> object:
    """The value of a key, or the default of transformers if the config leaves it out."""
    value = config.get(key)
    return DEFAULTS.get(key, default) if value is None else value


def _check_names(folder: Path, spec: LlamaSpec) -> None:
    """Raise ConfigError if the files of a folder have other tensors than the model. Reads no values."""
    names = {name for path in weight_files(folder) for name in dtypes(path) if not COMPUTED.search(name)}
    expected = {parameter.name for parameter in LlamaTask(spec).manifest()}
    if odd := (names - {"lm_head.weight"} if spec.tied else names) ^ expected:
        raise ConfigError(f"the files {'have' if min(odd) in names else 'lack'} {min(odd)}")
