"""A decoder's loss and gradients for all nodes in one pass, fast on a card.

Each parameter has a leading dimension of nodes, whether nodes have equal parameters or their own, so one batched matrix
product gives the gradient of every node. Products and attention are in bfloat16 on a card, as autocast would have them;
masters, the residual stream, norms and the loss are in float32. The block and the loss are compiled, if that works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.convergence.text import Text
from thinwire_proto.contract import DecoderSpec
from thinwire_proto.models import initial_state
from thinwire_proto.models.decoder import NORM_EPSILON, ROTARY_BASE
from thinwire_proto.models.llama import angles, rotate

log = logging.getLogger("bench.card")

BLOCK = ("attention_norm", "attention.qkv", "attention.out", "feed_norm", "feed.gate", "feed.up", "feed.down")
EMBEDDING, LAST_NORM = "embedding.weight", "norm.weight"
EVALUATION_SAMPLES = 64
SHAPES_MAX = 64
Function = Callable[..., Tensor]


def block(x: Tensor, weights: list[Tensor], rotary: tuple[Tensor, Tensor], heads: int) -> Tensor:
    """One block. x: float32 [nodes, samples, length, width]; weights: of `BLOCK`, each [nodes, *shape]."""
    attention_norm, qkv, out, feed_norm, gate, up, down = weights
    nodes, samples, length, width = x.shape
    h = normed(x, attention_norm, qkv.dtype).view(nodes, samples * length, width)
    q, k, v = torch.bmm(h, qkv.mT).view(nodes * samples, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    q, k = rotate(q, *rotary), rotate(k, *rotary)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mixed = mixed.transpose(1, 2).reshape(nodes, samples * length, width)
    x = x + torch.bmm(mixed, out.mT).view(x.shape)
    h = normed(x, feed_norm, gate.dtype).view(nodes, samples * length, width)
    h = F.silu(torch.bmm(h, gate.mT)) * torch.bmm(h, up.mT)
    return x + torch.bmm(h, down.mT).view(x.shape)


def head_loss(x: Tensor, norm: Tensor, embedding: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """Mean loss of each node, in nats a token, [nodes]. targets: [nodes, samples, length]."""
    nodes, _, _, width = x.shape
    h = normed(x, norm, dtype).view(nodes, -1, width)
    logits = torch.bmm(h, embedding.to(dtype).mT)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view(nodes, -1).mean(1)


def normed(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """RMSNorm with a weight for each node, [nodes, width]."""
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return (x * root * weight[:, None, None, :]).to(dtype)


@lru_cache(maxsize=1)
def compiled() -> tuple[Function, Function]:
    """`block` and `head_loss`, compiled for each shape that they meet."""
    torch._dynamo.config.recompile_limit = SHAPES_MAX
    return tuple(torch.compile(one, dynamic=False) for one in (block, head_loss))  # type: ignore[return-value]


class CardProblem:
    """One model in training, with the interface of `bench.convergence.problem.Problem` that batched methods use.

    is_compiled: whether the card's functions are compiled; until the first failure.
    """

    is_compiled = True

    def __init__(self, spec: DecoderSpec, text: Text, seed: int, device: torch.device) -> None:
        assert spec.tied, "the head is the embedding here"
        self.spec, self.text, self.device = spec, text, device
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.parameters: dict[str, Tensor] = {
            name: tensor.to(device, copy=True) for name, tensor in initial_state(spec, seed).items()
        }
        self._train, self._held_out = (_on(device, part) for part in (text.train, text.held_out))
        count = (len(self._train) - 1) // spec.context
        self._order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(device)
        self._rotary = angles(spec.context, spec.width // spec.heads, ROTARY_BASE, device)

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Train on these tensors from now on, without copying them."""
        self.parameters = tensors

    def gradients_of_shares(
        self, first: int, shares: int, samples: int, local: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss, and each share's gradient, [shares, *shape], of `samples` samples each from position `first`
        on. The loss stays on the card. local: each share's own parameters, in that shape."""
        tokens = self._samples(first, shares * samples).view(shares, samples, -1)
        if self.device.type == "cuda" and CardProblem.is_compiled:
            try:
                return self._gradients(tokens, local, *compiled())
            except torch.OutOfMemoryError:
                raise
            except Exception:  # the compiler can fail in any way; if the fault is ours, it comes again below
                log.exception("the model is not compiled from now on")
                CardProblem.is_compiled = False
        return self._gradients(tokens, local, block, head_loss)

    def _gradients(
        self, tokens: Tensor, local: Mapping[str, Tensor] | None, of_block: Function, of_head: Function
    ) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = self._leaves(len(tokens), local)
        losses = self._losses(leaves, tokens, of_block, of_head)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()))
        gradients = {name: gradient.float() for name, gradient in zip(leaves, found, strict=True)}
        return losses.detach().mean(), gradients

    @torch.no_grad()
    def held_out_loss(self, samples: int) -> Tensor:
        """Mean loss in nats a token on samples spread evenly over the held-out text; it stays on the card."""
        most = (len(self._held_out) - 1) // self.spec.context
        chosen = torch.linspace(0, most - 1, min(samples, most)).long().to(self.device)
        leaves, losses = self._leaves(1, None), []
        at_once = min(EVALUATION_SAMPLES, len(chosen))
        for start in range(0, len(chosen) - at_once + 1, at_once):
            tokens = _windows(self._held_out, chosen[start : start + at_once], self.spec.context)
            losses.append(self._losses(leaves, tokens[None], block, head_loss))
        return torch.cat(losses).mean()

    def _losses(self, leaves: dict[str, Tensor], tokens: Tensor, of_block: Function, of_head: Function) -> Tensor:
        """The loss of each node; tokens: [nodes, samples, context + 1]."""
        nodes, embedding = len(tokens), leaves[EMBEDDING]
        offsets = torch.arange(nodes, device=self.device)[:, None, None] * embedding.shape[1]
        x = F.embedding(tokens[..., :-1] + offsets, embedding.reshape(-1, embedding.shape[2]))
        for layer in range(self.spec.layers):
            weights = [leaves[f"blocks.{layer}.{name}.weight"] for name in BLOCK]
            x = of_block(x, weights, self._rotary, self.spec.heads)
        return of_head(x, leaves[LAST_NORM], embedding, tokens[..., 1:].contiguous(), self._dtype)

    def _leaves(self, nodes: int, local: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The parameters of each node, [nodes, *shape], as the leaves of the gradient: matrices in the products' type,
        vectors and the embedding in float32. Equal parameters share memory."""
        found = {}
        for name, tensor in (self.parameters if local is None else local).items():
            is_matrix = tensor.dim() == (2 if local is None else 3) and name != EMBEDDING
            of_all = tensor.detach().to(self._dtype) if is_matrix else tensor.detach()
            found[name] = (of_all.expand(nodes, *tensor.shape) if local is None else of_all).requires_grad_()
        return found

    def _samples(self, first: int, samples: int) -> Tensor:
        """The training samples from position `first` on; after the last comes the first."""
        positions = torch.arange(first, first + samples, device=self.device) % len(self._order)
        return _windows(self._train, self._order[positions], self.spec.context)


def _on(device: torch.device, tokens: np.ndarray[Any, Any]) -> Tensor:
    wide = tokens if tokens.dtype == np.uint8 else tokens.astype(np.int32)
    return torch.from_numpy(wide.copy()).to(device)


def _windows(text: Tensor, numbers: Tensor, context: int) -> Tensor:
    """Samples with one token more than the context, int64."""
    inside = torch.arange(context + 1, device=text.device)
    return text[numbers[:, None] * context + inside].long()
