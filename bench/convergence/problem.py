"""The common problem of all arms: model and initial state, text, order of samples, and evaluation.

The batch of an optimizer step is divided into equal shares, one a node. The gradient of a share is the mean over its
samples. If each node has one share a step, the mean over the nodes is the gradient of the whole batch, so AdamW's
result does not depend on the number of nodes.

All arithmetic is in float32, on a card too, so that a table may hold results of both: with bfloat16, AdamW with 64
nodes ended 1.9% higher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.convergence.text import Text, Tokens
from thinwire_proto.contract import DecoderSpec
from thinwire_proto.data.corpus import windows
from thinwire_proto.data.order import sample_at
from thinwire_proto.models import build_decoder, initial_state
from thinwire_proto.models.decoder import Decoder

EVALUATION_BATCH = 32
"""Samples evaluated at once. Bounds the memory; does not change the result."""


class Problem:
    """One model in training. Parameters and gradients are identified by name."""

    def __init__(self, spec: DecoderSpec, text: Text, seed: int, device: torch.device) -> None:
        """seed: of the initial state and of the order of samples."""
        self.spec = spec
        self.device = device
        self._seed = seed
        self.read(text)
        self._model = build_decoder(spec, device)
        self._loss = self._model.loss
        self.parameters: dict[str, Tensor] = dict(self._model.named_parameters())
        self.put({name: tensor.to(device) for name, tensor in initial_state(spec, seed).items()})

    def __getstate__(self) -> dict[str, Any]:
        """Without the text, which is to be read again, and without compiled code."""
        without = {"text", "_train", "_held_out", "_loss"}
        return {name: value for name, value in self.__dict__.items() if name not in without}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__dict__.update(saved)
        self._loss = self._model.loss

    def compile(self) -> None:
        """Compile the passes of `gradients`, which takes half a minute; the rounding of a gradient changes. Needs a C++
        compiler."""
        self._loss = torch.compile(self._model.loss, dynamic=False)

    def read(self, text: Text) -> None:
        """Take the samples from this text."""
        self.text = text
        self._train = windows(text.train, self.spec.context)
        self._held_out = windows(text.held_out, self.spec.context)

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Train on these tensors from now on, without copying them."""
        for name, parameter in self.parameters.items():
            parameter.data = tensors[name]

    def gradients(self, first: int, samples: int) -> tuple[float, dict[str, Tensor]]:
        """Mean loss in nats a token, and its gradient, for `samples` samples from position `first`."""
        loss = self._loss(self._samples(first, samples))
        found = torch.autograd.grad(loss, list(self.parameters.values()))
        return loss.item(), dict(zip(self.parameters, found, strict=True))

    def gradients_of_shares(
        self, first: int, shares: int, samples: int, local: Mapping[str, Tensor] | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """`gradients` of `shares` adjacent shares of `samples` samples each, in one pass: the mean of their losses, and
        each share's gradient, float32 [shares, *shape]. local: each share's own parameters, in that shape."""
        tokens = self._samples(first, shares * samples).view(shares, samples, -1)
        model = _Loss(self._model)
        if local is None:  # the same memory, as different tensors to autograd
            local = {name: parameter.expand(shares, *parameter.shape) for name, parameter in self.parameters.items()}
        own = {f"model.{name}": local[name].detach().requires_grad_() for name in self.parameters}

        def loss_of(parameters: dict[str, Tensor], share: Tensor) -> Tensor:
            return functional_call(model, parameters, (share,))  # type: ignore[no-any-return]

        # Not vmap(grad(…)): some operations of a card cannot be differentiated inside vmap but in a loop. And attention
        # only by a kind that vmap has a rule for everywhere.
        with sdpa_kernel(SDPBackend.MATH):
            losses = vmap(loss_of)(own, tokens)
        found = torch.autograd.grad(losses.sum(), list(own.values()))
        gradients = {name: gradient.contiguous() for name, gradient in zip(self.parameters, found, strict=True)}
        return losses.mean().item(), gradients

    @torch.no_grad()
    def held_out_loss(self, samples: int) -> float:
        """Mean loss in nats a token on `samples` samples, spread evenly over the held-out text."""
        count = min(samples, len(self._held_out))
        indices = np.linspace(0, len(self._held_out) - 1, count).astype(int).tolist()
        total = 0.0
        for start in range(0, count, EVALUATION_BATCH):
            part = indices[start : start + EVALUATION_BATCH]
            total += self._model.loss(self._tokens(self._held_out, part), reduction="sum").item()
        return total / (count * self.spec.context)

    def _samples(self, first: int, samples: int) -> Tensor:
        """The training samples from position `first`, int64 [samples, context + 1]."""
        positions = range(first, first + samples)
        return self._tokens(self._train, [sample_at(position, self._seed, len(self._train)) for position in positions])

    def _tokens(self, text: Tokens, indices: Sequence[int]) -> Tensor:
        return torch.from_numpy(text[indices].astype(np.int64)).to(self.device)


class _Loss(nn.Module):
    """The loss of a model as a module, since `functional_call` calls modules only."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.loss(tokens)
