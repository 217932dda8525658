"""A decoder-only transformer: pre-normalization with RMSNorm, rotary positions, SwiGLU, no biases.

It computes the same as Llama's: only names differ, and that it has the matrices of queries, keys and values in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import DecoderSpec
from thinwire_proto.contract.models.llama import LlamaSpec
from thinwire_proto.data.conversations import mean_loss, weight_of
from thinwire_proto.models.llama import LlamaTask, angles, draw_weights, packed_angles, rotate
from thinwire_proto.models.trained import SpecTask, trained
from thinwire_proto.task import NO_BLOBS, TASKS, HuggingFaceModel

QKV = "attention.qkv.weight"
QUERY_KEY_VALUE = tuple(f"self_attn.{one}_proj.weight" for one in "qkv")
OF_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "feed_norm.weight": "post_attention_layernorm.weight",
    "feed.gate.weight": "mlp.gate_proj.weight",
    "feed.up.weight": "mlp.up_proj.weight",
    "feed.down.weight": "mlp.down_proj.weight",
}
"""Names within a block of the decoder, and within a layer of Llama."""
OF_MODEL = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
"""Names outside of the blocks. A tied model has no matrix of its own for the head."""


def to_llama(tensors: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The decoder's tensors under Llama's names; views and not copies."""
    found = {theirs: tensors[ours] for ours, theirs in OF_MODEL.items() if ours in tensors}
    for number in range(layers):
        block, layer = f"blocks.{number}.", f"model.layers.{number}."
        found |= {layer + theirs: tensors[block + ours] for ours, theirs in OF_BLOCK.items()}
        parts = tensors[block + QKV].chunk(3)
        found |= {layer + theirs: part for theirs, part in zip(QUERY_KEY_VALUE, parts, strict=True)}
    return found


def from_llama(tensors: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The inverse of `to_llama`."""
    found = {ours: tensors[theirs] for ours, theirs in OF_MODEL.items() if theirs in tensors}
    for number in range(layers):
        block, layer = f"blocks.{number}.", f"model.layers.{number}."
        found |= {block + ours: tensors[layer + theirs] for ours, theirs in OF_BLOCK.items()}
        found[block + QKV] = torch.cat([tensors[layer + theirs] for theirs in QUERY_KEY_VALUE])
    return found


ROTARY_BASE = 10_000.0  # arXiv 2104.09864
NORM_EPSILON = 1e-5


class Attention(nn.Module):
    """Causal self-attention with rotary positions (arXiv 2104.09864)."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.qkv = nn.Linear(spec.width, 3 * spec.width, bias=False)
        self.out = nn.Linear(spec.width, spec.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None = None) -> Tensor:
        """seen: what each token sees, bool [batch, 1, length, length]; by default all before it."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, width / heads]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """Gated feed-forward layer (arXiv 2002.05202)."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.width, spec.hidden, bias=False)
        self.up = nn.Linear(spec.width, spec.hidden, bias=False)
        self.down = nn.Linear(spec.hidden, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One transformer block: attention and feed-forward, each after a norm and with a residual connection."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(spec.width, eps=NORM_EPSILON)
        self.attention = Attention(spec)
        self.feed_norm = nn.RMSNorm(spec.width, eps=NORM_EPSILON)
        self.feed = SwiGLU(spec)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, seen)
        return x + self.feed(self.feed_norm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The model: maps tokens [batch, length] to logits [batch, length, vocabulary]."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        # pass in a tensor: drawing one on "meta" would load torch's compiler, which takes seconds at each node's start
        self.embedding = nn.Embedding.from_pretrained(torch.empty(spec.vocabulary, spec.width), freeze=False)  # type: ignore[no-untyped-call]
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.width, eps=NORM_EPSILON)
        self.head = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied:
            self.head.weight = self.embedding.weight

    packs = True
    weight = staticmethod(weight_of)

    def forward(self, tokens: Tensor, marks: Tensor | None = None) -> Tensor:
        cos, sin = angles(tokens.shape[1], self.spec.width // self.spec.heads, ROTARY_BASE, tokens.device)
        cos, sin, seen = packed_angles(cos, sin, marks)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin, seen)
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor, marks: Tensor | None = None, reduction: str = "mean") -> Tensor:
        """See `thinwire_proto.data.conversations.mean_loss`."""
        logits = self(tokens[:, :-1], None if marks is None else marks[:, :-1])
        return mean_loss(logits, tokens, marks, reduction)

    def stages(self) -> Iterable[nn.Module]:
        """See `thinwire_proto.task.Model`."""
        return self.blocks

    def initialise(self, generator: torch.Generator) -> None:
        """See `draw_weights`."""
        draw_weights(self, self.spec.layers, ("attention.out.weight", "feed.down.weight"), generator)

    @torch.no_grad()
    def next_logits(self, tokens: Tensor) -> Tensor:
        """See `thinwire_proto.task.Writes`."""
        return self(tokens[None, -self.spec.context :])[0, -1].float()  # type: ignore[no-any-return]


@TASKS.register("decoder")
class DecoderTask(SpecTask[DecoderSpec]):
    """The `Task` of the model kind `decoder`."""

    def initial_state(self, seed: int, blobs: Blobs = NO_BLOBS) -> dict[str, Tensor]:
        model = self.model("cpu")
        model.initialise(torch.Generator().manual_seed(seed))
        return trained(model)

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> Decoder:
        with torch.device(device):
            return Decoder(self._spec)

    def load(self, folder: Path) -> dict[str, Tensor]:
        return from_llama(self._as_llama().load(folder), self._spec.layers)

    def hugging_face(self, parameters: Mapping[str, Tensor], blobs: Blobs = NO_BLOBS) -> HuggingFaceModel:
        return self._as_llama().hugging_face(to_llama(parameters, self._spec.layers), blobs)

    def _as_llama(self) -> LlamaTask:
        """The same model in Llama's layout."""
        spec = self._spec
        more = {"kv_heads": spec.heads, "rope_theta": ROTARY_BASE, "norm_epsilon": NORM_EPSILON}
        return LlamaTask(LlamaSpec.model_validate(spec.model_dump(exclude={"kind"}) | more))
