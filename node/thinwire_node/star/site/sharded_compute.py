"""Computes with a model that no rank holds whole (ZeRO, arXiv 1910.02054, stage 3).

Each rank keeps the parameters of its range of tiles. Those of a stage of the model come together while the stage runs,
once in the forward pass and again in the backward pass, where its gradients go to the ranks of their ranges. A stage
keeps its inputs alone, and is computed again, as with checkpoints. What belongs to no stage, such as an embedding, is
whole for the time of a pass.

All ranks must be at the same place. So before parameters travel they agree that nobody has failed: if one runs out of
memory, is interrupted or finds a number that is not finite, all of them give the pass up at the same stage. The
gradients of a pass are added to the sums at its end, so nothing has to be undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from thinwire_node.star.site.shares import Shares
from thinwire_node.training.checkpoints import PlainStage, StageCall
from thinwire_node.training.compute import evaluating
from thinwire_node.training.device import compute_dtype, full_float32
from thinwire_node.training.failures import Interrupted, NotFinite, OutOfMemory
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_proto.exact.tiles import Part
from thinwire_proto.out_of_memory import TooLittleMemory, is_out_of_memory, reason_of
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import Batch, Model, Task

Tensors = Mapping[str, Tensor]


class Group:
    """Whole tensors that come together, and their parts in the ranges of all ranks: for each part, the name of the
    range's tensor and the place of that in the whole one."""

    def __init__(self, shares: Shares, names: Collection[str]) -> None:
        self.shapes = {one.name: one.shape for one in shares.layout.tensors if one.name in names}
        self.parts: list[list[tuple[str, Part]]] = [of_rank.among(names) for of_rank in shares.ranges]


def counting(batch: Batch) -> tuple[Batch, int]:
    """The samples of a batch that count, and their number. If none does, the first stands in for one.

    batch: with a last tensor that says which samples count, bool [samples]; those that do come first."""
    *tensors, counts = batch
    count = int(counts.sum())
    return tuple(tensor[: max(1, count)] for tensor in tensors), count


class ShardedCompute:
    """See `thinwire_node.training.compute.Compute`. Parameters, gradients and sums are those of the own range, by the
    names of its layout. Every method but `interrupt` and `resume` is called by all ranks at the same place, and raises
    the same there. Passes use bfloat16 where the device has it, and float32 elsewhere."""

    def __init__(self, task: Task, device: torch.device, shares: Shares, micro_batch: MicroBatch | None = None) -> None:
        self.device = device
        self.micro_batch = micro_batch or MicroBatch()
        self._ranks = shares.ranks
        dtype = compute_dtype(device)
        self._dtype = torch.float32 if dtype == torch.float16 else dtype
        self._pieces: dict[str, Tensor] = {}
        self._found: dict[str, Tensor] = {}  # the gradient of a pass in the own range, times its samples
        self._is_interrupted = False
        self._anchor = torch.zeros((), device=device, requires_grad=True)  # lets a stage without a gradient in have one
        model = _skeleton(task, device)
        names = {id(one): name for name, one in model.named_parameters()}
        stages = list(model.stages())
        places = [{place: names[id(one)] for place, one in stage.named_parameters()} for stage in stages]
        self._root = Group(shares, _outside(model, stages, names))
        self._model = Stateless(model)
        for stage, of_stage in zip(stages, places, strict=True):
            self._gather_for(stage, of_stage, Group(shares, set(of_stage.values())))

    @property
    def parameters(self) -> Tensors:
        return self._pieces

    def weight(self, batch: Batch) -> int:
        return self._model.weight(batch)

    @torch.no_grad()
    def use(self, parameters: Tensors, offset: Tensors | None = None) -> None:
        self._pieces = {name: tensor.to(self.device) for name, tensor in parameters.items()}
        if offset is not None:  # a rule with an offset changes what it gets
            self._pieces = {name: tensor + offset[name] for name, tensor in self._pieces.items()}

    def gradients(self, batch: Batch, weight: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of this rank's batch, and the mean gradients of all ranks'. weight: see `add_gradients`; None: that
        of the batch."""
        weight = self.weight(batch) if weight is None else weight
        loss, total = self._pass(batch, weight), self._ranks.total(weight)
        found, self._found = self._found, {}
        return loss, {name: gradient.div_(total) for name, gradient in found.items()}

    def add_gradients(self, batch: Batch, sums: Tensors, weight: int) -> Tensor:
        """weight: of this rank's batch; 0 if it has no sample, and the batch stands in for one."""
        loss = self._pass(batch, weight)
        for name, total in sums.items():
            total.add_(self._found[name].to(total.device))
        self._found = {}
        return loss

    def _pass(self, batch: Batch, weight: int) -> Tensor:
        """The loss of a batch. Leaves the gradients of all ranks, times their weights, in `_found`."""
        self._found = {name: torch.zeros_like(tensor) for name, tensor in self._pieces.items()}
        root = {name: tensor.requires_grad_() for name, tensor in self._gather(self._root).items()}
        with self._carefully():
            loss = self._loss(root, batch)
        self._agree(is_finite=bool(loss.isfinite()))
        with self._carefully():
            torch.autograd.backward(loss * weight)
        none = {name: torch.zeros_like(tensor) for name, tensor in root.items() if tensor.grad is None}
        self._reduce(self._root, {name: none[name] if one.grad is None else one.grad for name, one in root.items()})
        self._agree()
        return loss.detach()

    def _loss(self, root: Tensors, batch: Batch) -> Tensor:
        here = tuple(tensor.to(self.device) for tensor in batch)
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            return self._model.loss(root, here)

    @torch.no_grad()
    def loss(self, parameters: Tensors, batch: Batch) -> float:
        """The mean loss of the samples of all ranks. batch: see `counting`."""
        before, sums = self._pieces, torch.zeros(2, dtype=torch.float64)  # of losses times their weights, of weights

        def measure(piece: Batch, _: Tensors | None) -> None:
            samples, count = counting(piece)
            root = self._gather(self._root)
            with self._carefully(), full_float32(), evaluating(self._model.model):
                found = float(self._model.loss(root, tuple(tensor.to(self.device) for tensor in samples)))
            self._agree()
            weight = self.weight(samples) if count else 0
            sums.add_(torch.tensor([found * weight, weight]))

        self.use(parameters)
        try:
            self.micro_batch.in_pieces(batch, None, measure)
        finally:
            self._pieces = before
        self._ranks.add_up(sums)
        return float(sums[0] / sums[1])

    # what travels

    @torch.no_grad()
    def _gather(self, group: Group) -> dict[str, Tensor]:
        """Put whole tensors together."""
        rank = self._ranks.rank
        with self._carefully():
            whole = {name: torch.empty(shape, device=self.device) for name, shape in group.shapes.items()}
            flats = [torch.empty(_size(parts), device=self.device) for parts in group.parts]
            if group.parts[rank]:
                flats[rank] = torch.cat([self._pieces[piece].reshape(-1) for piece, _ in group.parts[rank]])
        self._agree()
        for owner, (parts, flat) in enumerate(zip(group.parts, flats, strict=True)):
            if parts:
                self._ranks.share(owner, flat)
            bands = [part.band(whole[part.tensor.name]) for _, part in parts]
            for band, values in zip(bands, flat.split_with_sizes([band.numel() for band in bands]), strict=True):
                band.copy_(values.view(band.shape))
        return whole

    @torch.no_grad()
    def _reduce(self, group: Group, gradients: Tensors) -> None:
        """Add the gradients of all ranks to what was found in the ranges."""
        with self._carefully():
            sums = [gradient.sum() for gradient in gradients.values()]
            is_finite = bool(torch.stack(sums).isfinite().all()) if sums else True
            flats = [torch.empty(_size(parts), device=self.device) for parts in group.parts]
            for parts, flat in zip(group.parts, flats, strict=True):
                first = 0
                for _, part in parts:  # one by one, because some must be copied first
                    band = part.band(gradients[part.tensor.name].contiguous())
                    flat[first : first + band.numel()].view(band.shape).copy_(band)
                    first += band.numel()
        self._agree(is_finite=is_finite)
        for owner, (parts, flat) in enumerate(zip(group.parts, flats, strict=True)):
            if parts:
                self._ranks.add_up_at(owner, flat)
            if owner == self._ranks.rank:
                found = [self._found[piece].view(-1) for piece, _ in parts]
                for total, values in zip(found, flat.split_with_sizes([len(one) for one in found]), strict=True):
                    total.add_(values)

    # failing together

    def _agree(self, reason: str = "", *, is_finite: bool = True) -> None:
        """Go on if all ranks can. reason: why this one has no memory. Raises OutOfMemory, Interrupted or NotFinite."""
        failed = torch.tensor([bool(reason), self._is_interrupted, not is_finite], dtype=torch.int32)
        self._ranks.add_up(failed)
        lacks_memory, is_interrupted, is_spoilt = failed.tolist()
        if lacks_memory:
            raise OutOfMemory(reason or "another process of this node runs out of it", frozenset())
        if is_interrupted:
            raise Interrupted
        if is_spoilt:
            raise NotFinite

    @contextmanager
    def _carefully(self) -> Iterator[None]:
        """Let all ranks raise OutOfMemory if this one runs out of memory in the block."""
        try:
            yield
        except (OutOfMemory, TooLittleMemory):
            raise  # on which they have agreed
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._agree(reason_of(error))

    def interrupt(self) -> None:
        """The leader's word is enough: all agree on it."""
        self._is_interrupted = self._ranks.rank == 0

    def resume(self) -> None:
        self._is_interrupted = False

    # stages

    def _gather_for(self, stage: nn.Module, names: Mapping[str, str], group: Group) -> None:
        """Let a stage gather its parameters when it runs. names: of the whole tensors, by the stage's own names."""
        plain = PlainStage(stage)
        places = {f"stage.{place}": name for place, name in names.items()}

        def outputs(call: StageCall, tensors: Sequence[Tensor]) -> Any:
            whole = self._gather(group)
            with self._carefully():
                return call.outputs(tensors, {place: whole[name] for place, name in places.items()})

        def backward(call: StageCall, inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Any]:
            """The gradients of the inputs that need one. Those of the parameters go to their ranges."""
            whole = {name: tensor.requires_grad_() for name, tensor in self._gather(group).items()}
            wanted = [tensor for tensor in inputs if tensor.requires_grad]
            with self._carefully():
                found = call.outputs_again(inputs, {place: whole[name] for place, name in places.items()})
                outputs = found if isinstance(found, tuple) else (found,)
                pairs = zip(outputs, gradients, strict=True)
                known = [(of, by) for of, by in pairs if by is not None and of.requires_grad]
                results = torch.autograd.grad(
                    [of for of, _ in known],
                    [*wanted, *whole.values()],
                    [by for _, by in known],
                    allow_unused=True,
                    materialize_grads=True,
                )
            of_whole = dict(zip(whole, results[len(wanted) :], strict=True))
            del whole, found, outputs, pairs, known  # before the gradients are copied
            self._reduce(group, of_whole)
            return list(results[: len(wanted)])

        def forward(*arguments: Any, **named: Any) -> Any:
            call = StageCall(plain, {}, arguments, named)
            tensors, call.tensors = call.tensors, []
            if not torch.is_grad_enabled():
                return outputs(call, tensors)
            return _GatheredStage.apply(outputs, backward, call, self._anchor, *tensors)  # type: ignore[no-untyped-call]

        stage.forward = forward


class _GatheredStage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Any, backward: Any, call: StageCall, anchor: Tensor, *tensors: Tensor) -> Any:
        ctx.backward_of, ctx.call = backward, call
        ctx.save_for_backward(*tensors)
        return outputs(call, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        found = iter(ctx.backward_of(ctx.call, inputs, gradients))
        return None, None, None, None, *(next(found) if tensor.requires_grad else None for tensor in inputs)


def _skeleton(task: Task, device: torch.device) -> Model:
    """The model without its parameters, which would not fit on the device. Its buffers are there."""
    model = task.model("meta")
    if not any(True for module in model.modules() for _ in module.buffers(recurse=False)):
        return model
    model = task.model("cpu")
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
    return model


def _outside(model: Model, stages: Sequence[nn.Module], names: Mapping[int, str]) -> set[str]:
    """The names of the parameters that a module outside of the stages uses."""
    inside = {id(module) for stage in stages for module in stage.modules()}
    modules = [module for module in model.modules() if id(module) not in inside]
    return {names[id(one)] for module in modules for one in module.parameters(recurse=False)}


def _size(parts: Sequence[tuple[str, Part]]) -> int:
    sides = ((part.rows, part.columns) for _, part in parts)
    return sum((rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in sides)
