"""`DecentralizedDataParallel`: Gossip with the interface of decent-dp 0.2.3, for scripts that exist.

A script of decent-dp calls `backward` and nothing else: the wrapper steps. Here it steps at the end of each backward
pass, once for the whole model, and so does not have the faults that come from a step a bucket and from tracing the
first iteration: clipping and `GradScaler` see all gradients; a parameter that is unused at first is trained; the first
gradient is not lost by a `zero_grad` before the next forward pass; accumulation steps; one rank, and one rank a host,
work; buffers and frozen parameters start equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from thinwire.gossip.gossip import Gossip
from thinwire_proto.errors import ConfigError

OptimizerFunction = Callable[[list[tuple[str, Tensor]]], Optimizer]
SchedulerFunction = Callable[[Optimizer], LRScheduler]
TOPOLOGIES = {"one-peer-exp": "one-peer-exponential", "alternating-exp-ring": "alternating-exponential-ring"}
"""Their names of topologies that are called differently here."""


class DecentralizedDataParallel(nn.Module):
    """A model that trains in a gossip run, and steps at the end of each backward pass.

    optim_fn: makes the optimizer from (name, parameter) pairs, once. lr_scheduler_fn: its schedule, stepped with it.
    topology: decent-dp's names, or this project's. grad_clip_norm: the largest norm of all gradients together; 0: any.
    sync_buffer_in_global_avg: `global_avg` averages buffers of floats too. param_as_bucket_view and bucket_size_in_mb
    are accepted, and mean nothing here. _local_world_size: ranks on each host; by default those of torchrun. settings:
    of `Gossip`, such as codec and slack."""

    def __init__(
        self,
        model: nn.Module,
        optim_fn: OptimizerFunction,
        lr_scheduler_fn: SchedulerFunction | None = None,
        topology: str = "complete",
        scaler: torch.amp.GradScaler | None = None,
        grad_clip_norm: float = 0.0,
        param_as_bucket_view: bool = True,
        sync_buffer_in_global_avg: bool = False,
        bucket_size_in_mb: int = 25,
        _local_world_size: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._model = model.cuda() if torch.cuda.is_available() else model
        named: list[tuple[str, Tensor]] = [
            (name, tensor) for name, tensor in self._model.named_parameters() if tensor.requires_grad
        ]
        self._optimizer = optim_fn(named)
        self._scheduler = lr_scheduler_fn(self._optimizer) if lr_scheduler_fn else None
        self._scaler = scaler
        self._clip_norm = grad_clip_norm
        self._averages_buffers = sync_buffer_in_global_avg
        self.gossip = Gossip(
            self._model,
            self._optimizer,
            topology=TOPOLOGIES.get(topology, topology),
            per_host=_local_world_size,
            **settings,
        )
        self._accumulates = False
        self._is_queued = False
        self._has_gradient = False
        self._average: AbstractContextManager[Any] | None = None
        self._trained = [tensor for _, tensor in named]
        for tensor in self._trained:
            register: Any = tensor.register_post_accumulate_grad_hook  # has no types
            register(self._on_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._is_queued = self._has_gradient = False  # a backward pass that raised has left them
        found = self._model(*args, **kwargs)
        for output in tree_leaves(found):
            if isinstance(output, Tensor) and output.requires_grad:
                register: Any = output.register_hook  # has no types
                register(self._on_output)
        return found

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        yield from self._model.parameters(recurse)

    def set_accumulate_grad(self, enable: bool = True) -> None:
        """With True, backward passes only add up gradients. The first one after False steps by their sum."""
        self._accumulates = enable

    def set_adaptive_factor(self, factor: float) -> None:
        """The fraction of the way to the mean of its peers and itself that a rank goes in an iteration."""
        self.gossip.factor = factor

    def get_lr(self) -> float:
        """The learning rate of the first param group."""
        return float(self._optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def global_avg(self, will_revert: bool = True, return_d2c: bool = False) -> float | None:
        """Replace the model by the mean of all ranks. All ranks call it. return_d2c: return the distance from it.

        will_revert: until `revert_global_avg`. Otherwise training goes on from the mean, and what is pending is dropped
        by all ranks."""
        if self._average is not None:
            raise ConfigError("the model is averaged already; call revert_global_avg before")
        before = [tensor.detach().clone() for tensor in self._trained]
        if will_revert:
            average = self.gossip.averaged(buffers=self._averages_buffers)
            average.__enter__()
            self._average = average
        else:
            self.gossip.average(buffers=self._averages_buffers)
        apart = [tensor.detach() - there for tensor, there in zip(self._trained, before, strict=True)]
        return float(torch.stack([part.double().norm() for part in apart]).norm()) if return_d2c else None

    def revert_global_avg(self) -> None:
        """Take parameters and buffers from before `global_avg` again. Raises ConfigError if there are none."""
        if self._average is None:
            raise ConfigError("there is nothing to revert; call global_avg with will_revert=True before")
        average, self._average = self._average, None
        average.__exit__(None, None, None)

    def _on_output(self, _: Tensor) -> None:
        """The backward pass of the script begins. Those that checkpoints of activations run inside it come later, so
        that what is queued here runs at the end of the whole."""
        if not self._is_queued:
            self._is_queued = True
            Variable._execution_engine.queue_callback(self._on_backward_end)

    def _on_gradient(self, gradient: Tensor) -> None:
        if not self._accumulates:
            self._has_gradient = True
            self._on_output(gradient)

    def _on_backward_end(self) -> None:
        self._is_queued = False
        if not self._has_gradient:  # gradients were only accumulated, or are those of torch.autograd.grad
            return
        self._has_gradient = False
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        if self._clip_norm > 0:
            nn.utils.clip_grad_norm_(self._trained, self._clip_norm)
        if self._scaler is not None:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad()
        if self._scheduler is not None:
            self._scheduler.step()
