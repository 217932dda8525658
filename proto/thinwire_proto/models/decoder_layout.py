"""The decoder's tensors in Llama's layout, and back. The two compute the same: only names differ, and that the decoder
has the matrices of queries, keys and values in one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

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
