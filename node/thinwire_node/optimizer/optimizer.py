"""The optimizer alone, for anybody's training script: `from thinwire_node import DeMo`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, overload

import msgpack
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from thinwire_node.optimizer.all_gather import Exchange
from thinwire_node.optimizer.param_group import ParamGroup, check_rates, described, group_of, settings_of
from thinwire_proto.contract import canonical_json
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.fingerprint import fingerprint

SETTINGS_OF_STATE = ("values", "compression_chunk", "precondition")
"""What a state must have been made with, to mean anything here. All others come back with it."""
RATE_TOLERANCE = 1e-6
"""Relative: as far as two machines' cosines may make two ranks' learning rates differ."""
GRADIENT_MAX = 1e18
"""Beyond it the second moment would become infinite, and stay so."""
DIFFERENCES_SHOWN = 4


class DeMo(Optimizer):
    """Decoupled momentum (arXiv 2411.19870): each rank keeps its momentum, and sends the largest components of it.

    Gradients must stay each rank's own. So do not wrap the model in DistributedDataParallel, which averages them, or
    have every backward under its `no_sync`; the step is the only exchange. All ranks must start from the same
    parameters, which the first step checks, and call `step` equally often. Every rank has a `state_dict` of its own.

    With `values="vote"` only signs travel. They are added up and decoded in integers and applied exactly, with the
    code that a swarm's nodes run: parameters are equal on all ranks, bit for bit and always, on different hardware too.
    With `values="float"` the arithmetic is the published one, step for step, and ranks may drift apart where their
    hardware adds floats up in another order.

    params               float32, as torch's optimizers take them; a param group may have its own of every setting but
                         `process_group`. To compute in bfloat16, keep float32 masters and use autocast
    compression_decay    β of the momentum
    compression_topk     k, components kept of a chunk
    compression_chunk    edge of a chunk; 64 with votes
    weight_decay         decoupled, θ ← θ·(1 − lr·weight_decay), for every trained parameter
    process_group        who exchanges; the default group, or without torch.distributed this process alone
    lr                   any scheduler may change it between steps; all ranks take that of the first
    update_topk          with votes, components that a step keeps of a chunk, the strongest of all ranks' together; what
                         it leaves out goes back into the momentum of those who sent it. 0: all
    alpha                share of what was sent that leaves the momentum
    values               "vote" or "float", see above
    transform            "dct", or with votes "hadamard"
    magnitude            of a parameter's step: "sign", or with votes "clipped", see `thinwire_proto.exact.decode`
    precondition         "adam" divides the gradient by the root of its own second moment; nothing of it is sent
    precondition_beta    decay of that second moment

    Defaults are the published ones, and mean the published algorithm. Those that the experiments have found better are
    a swarm's, in `thinwire_proto.contract.DemoSpec`.

    A gradient that is None counts as zero: momentum decays and is sent as ever, and other ranks' votes reach the
    parameter. A rank with a gradient that is not finite, or beyond 1e18, sends nothing in this step, leaves its
    momentum alone, and counts it in `dropped`. Which parameters are trained (`requires_grad`) is settled with a param
    group's first step. docs/optimizer.md has more.

    Raises ConfigError for settings that cannot be, and, on all ranks alike, where the ranks' settings differ.
    """

    def __init__(
        self,
        params: ParamsT,
        compression_decay: float = 0.999,
        compression_topk: int = 32,
        compression_chunk: int = 64,
        weight_decay: float = 0.0,
        process_group: dist.ProcessGroup | None = None,
        *,
        lr: float = 1e-3,
        update_topk: int = 0,
        alpha: float = 1.0,
        values: Literal["vote", "float"] = "vote",
        transform: Literal["dct", "hadamard"] = "dct",
        magnitude: Literal["sign", "clipped"] = "sign",
        precondition: Literal["none", "adam"] = "none",
        precondition_beta: float = 0.99,
    ) -> None:
        settings = {
            "compression_decay": compression_decay,
            "compression_topk": compression_topk,
            "compression_chunk": compression_chunk,
            "update_topk": update_topk,
            "alpha": alpha,
            "values": values,
            "transform": transform,
            "magnitude": magnitude,
            "precondition": precondition,
            "precondition_beta": precondition_beta,
        }
        self._groups: dict[int, ParamGroup] = {}  # those begun, by their number; one without trained parameters never
        self._exchange = Exchange(process_group)
        self._agreement: dict[str, Any] | None = None  # what was told to the other ranks about all groups
        self._agreement_hash = b""
        self.dropped = 0
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay} | settings)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. Raises ConfigError for settings that cannot be, and parameters that are not float32."""
        super().add_param_group(param_group)
        # kept with the state, where momentum lies in tiles and does not tell
        self.param_groups[-1]["shapes"] = [list(tensor.shape) for tensor in self.param_groups[-1]["params"]]
        try:
            settings_of(self.param_groups[-1])
            check_rates(*_rates(self.param_groups[-1]))
            _trained(self.param_groups[-1])
        except ConfigError:
            self.param_groups.pop()
            raise

    @property
    def bytes_sent(self) -> int:
        """By this rank since the optimizer was made, padding included; see `Exchange`."""
        return self._exchange.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._exchange.bytes_received

    @torch.no_grad()
    def fingerprint(self) -> int:
        """0 … 2⁶⁴ − 1: stands for the bits of the trained parameters, and is equal on all ranks if these are."""
        return fingerprint((tensor for group in self.param_groups for tensor in _trained(group)), 0)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step with one exchange, which all ranks must make. closure: computes the loss anew, and returns it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with _without_autocast():
            self._step()
        return loss

    def _step(self) -> None:
        groups = self._begin()
        rates = [_rates(group) for group in self.param_groups]
        for rate in rates:
            check_rates(*rate)
        gradients = {number: [_gradient(tensor) for tensor in group.parameters] for number, group in groups.items()}
        parts: dict[int, bytes] = {}
        if _sound([gradient for tensors in gradients.values() for gradient in tensors]):
            for number, group in groups.items():
                parts[number] = group.extract(gradients[number], rates[number][0])
        else:
            self.dropped += 1
        del gradients  # an exchange takes long, and a model's gradients much memory
        rates, everybody = self._gather(rates, parts)
        for number, group in groups.items():
            group.apply([sent[number] for sent in everybody if number in sent], *rates[number])

    def _begin(self) -> dict[int, ParamGroup]:
        """The groups that have trained parameters, with what they have learned, or were loaded with."""
        for number, options in enumerate(self.param_groups):
            settings, trained = settings_of(options), _trained(options)
            known = [parameter for parameter in options["params"] if self.state.get(parameter)]
            changed = {id(parameter) for parameter in known} ^ {id(parameter) for parameter in trained}
            if known and changed:
                place = next(n for n, parameter in enumerate(options["params"]) if id(parameter) in changed)
                raise ConfigError(
                    f"requires_grad of parameter {place} of param group {number} has changed since the first step; "
                    "give what is trained later to add_param_group then, or make a new optimizer"
                )
            begun = self._groups.get(number)
            if not trained or (begun and begun.settings == settings):
                continue
            for name in SETTINGS_OF_STATE:
                if begun and getattr(begun.settings, name) != getattr(settings, name):
                    raise ConfigError(f"{name} of param group {number} cannot change any more; make a new optimizer")
            self._groups[number] = self._restore(group_of(trained, settings))
            self._agreement = None
        return self._groups

    def _restore(self, group: ParamGroup) -> ParamGroup:
        """Take over what torch has in `state`, which from then on is the group's own."""
        for parameter, learned in zip(group.parameters, group.state(), strict=True):
            for name, tensor in self.state.get(parameter, {}).items():
                learned[name].copy_(tensor)
            self.state[parameter] = learned
        return group

    def _gather(
        self, rates: list[tuple[float, float]], parts: dict[int, bytes]
    ) -> tuple[list[tuple[float, float]], list[dict[int, bytes]]]:
        """The one exchange: the first rank's rates, and all ranks' parts, by the number of the group."""
        if self._exchange.ranks == 1:
            return rates, [parts]
        if self._agreement is None:
            self._agreement = {f"param group {number}": described(group) for number, group in self._groups.items()}
            self._agreement["parameters"] = f"{self.fingerprint():016x}"
            self._agreement_hash = hashlib.sha256(canonical_json(self._agreement)).digest()[:16]
        told = msgpack.packb([self._agreement_hash, rates, parts])
        everybody = [msgpack.unpackb(data, strict_map_key=False) for data in self._exchange.gather(told, self._device)]
        if any(agreement != everybody[0][0] for agreement, _, _ in everybody):
            self._raise_differences()
        for rank, (_, theirs, _) in enumerate(everybody):
            _check_alike(everybody[0][1], theirs, rank)
        return [(rate, decay) for rate, decay in everybody[0][1]], [sent for _, _, sent in everybody]

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.param_groups[0]["params"][0].device
        return device

    def _raise_differences(self) -> None:
        """All ranks are here, since all have seen all hashes."""
        told = self._exchange.gather(msgpack.packb(self._agreement), self._device)
        first, *others = [msgpack.unpackb(data) for data in told]
        found = [
            f"{name}: {ours} on rank 0, {theirs} on rank {rank}"
            for rank, other in enumerate(others, 1)
            for name, ours, theirs in _differences(first, other)
        ]
        if all(line.startswith("parameters: ") for line in found):
            raise ConfigError(
                "the ranks do not start from the same parameters; draw them from one seed, or send the first rank's "
                "before the first step: for p in model.parameters(): torch.distributed.broadcast(p.data, 0)"
            )
        more = f"; and {len(found) - DIFFERENCES_SHOWN} more" if len(found) > DIFFERENCES_SHOWN else ""
        raise ConfigError(f"the ranks' optimizers differ: {'; '.join(found[:DIFFERENCES_SHOWN])}{more}")

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """As torch's: settings come with the state. Raises ConfigError, and changes nothing, for one that does not fit
        these parameters, or was made with other SETTINGS_OF_STATE."""
        for number, (saved, options) in enumerate(zip(state_dict["param_groups"], self.param_groups, strict=False)):
            _check_state(number, saved, options, state_dict["state"])
        super().load_state_dict(state_dict)
        for options in self.param_groups:
            options.setdefault("update_topk", 0)  # of a state that is older than the setting
        self._groups.clear()
        self._agreement = None


def _trained(options: dict[str, Any]) -> list[Tensor]:
    """The parameters of one of torch's `param_groups` that are trained, tied ones once. Raises ConfigError."""
    trained = {id(tensor): tensor for tensor in options["params"] if tensor.requires_grad and tensor.numel()}
    for tensor in trained.values():
        if tensor.dtype != torch.float32:
            raise ConfigError(
                f"DeMo steps float32 parameters, and one is {str(tensor.dtype).removeprefix('torch.')}, where a step "
                "may be lost in rounding. Keep float32 masters: leave the model in float32, and use autocast"
            )
    if len({tensor.device for tensor in trained.values()}) > 1:
        raise ConfigError("the parameters of a param group must be on one device; give each device a group of its own")
    return list(trained.values())


def _rates(options: dict[str, Any]) -> tuple[float, float]:
    return float(options["lr"]), float(options["weight_decay"])


def _gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    return (gradient.to_dense() if gradient.is_sparse else gradient).detach().float().contiguous()


def _sound(gradients: Sequence[Tensor]) -> bool:
    """Whether all of them are finite, and their squares are; waits for the device once."""
    if not gradients:
        return True
    device = gradients[0].device
    largest = [torch.linalg.vector_norm(gradient, math.inf).to(device) for gradient in gradients]
    return bool((torch.stack(largest) < GRADIENT_MAX).all())  # which NaN is not


def _check_alike(first: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], rank: int) -> None:
    """Rates differ by rounding at most, or the ranks do not run the same schedule. Raises ConfigError."""
    for number, (ours, other) in enumerate(zip(first, theirs, strict=True)):
        for name, a, b in zip(("lr", "weight_decay"), ours, other, strict=True):
            if not math.isclose(a, b, rel_tol=RATE_TOLERANCE):
                raise ConfigError(
                    f"the {name} of param group {number} is {a} on rank 0 and {b} on rank {rank}; a step must have the "
                    "same on all ranks, so let a schedule hang on nothing that is a rank's own"
                )


def _differences(first: dict[str, Any], other: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    for name in [*first, *(name for name in other if name not in first)]:
        ours, theirs = first.get(name, "none"), other.get(name, "none")
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differences(ours, theirs, f"{path}{name}, ")
        elif ours != theirs:
            yield f"{path}{name}", ours, theirs


def _check_state(number: int, saved: dict[str, Any], options: dict[str, Any], state: dict[int, Any]) -> None:
    """Raises ConfigError."""
    for name in SETTINGS_OF_STATE:
        if name not in saved:
            raise ConfigError(f"this is not a state of DeMo: its param group {number} has no {name}")
        if saved[name] != options[name]:
            raise ConfigError(
                f"param group {number}: the state was made with {name}={saved[name]!r}, and the optimizer with "
                f"{options[name]!r}; make the optimizer as the state was made"
            )
    for place, (there, here) in enumerate(zip(saved["shapes"], options["shapes"], strict=False)):
        if there != here:
            raise ConfigError(f"parameter {place} of param group {number} is {there} in the state, and {here} here")
    known = [bool(state.get(key)) for key in saved["params"]]
    trained = {id(tensor) for tensor in _trained(options)}
    for place, (there, tensor) in enumerate(zip(known, options["params"], strict=False)):
        if any(known) and there != (id(tensor) in trained):
            raise ConfigError(
                f"parameter {place} of param group {number} was {'trained' if there else 'frozen'} in the state, and "
                "is not here; set requires_grad as it was, and load then"
            )


@contextmanager
def _without_autocast() -> Iterator[None]:
    """A step inside the block is not what autocast is meant for, and the exact decode refuses it."""
    with ExitStack() as stack:
        for device_type in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        yield
