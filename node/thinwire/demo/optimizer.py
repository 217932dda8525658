"""The DeMo optimizer for any training script: `from thinwire import DeMo`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Real
from typing import Any, Literal, overload

import msgpack
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from thinwire.demo.agreement import EqualPayloads, check_equal, check_equal_rates
from thinwire.demo.all_gather import AllGather
from thinwire.demo.param_group import ParamGroup, check_rates, described, group_of, settings_of
from thinwire.script import only_asks_for_state
from thinwire.whole_parameters import named, refuse_partial, refuse_replaced
from thinwire_proto.contract import canonical_json
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.fingerprint import fingerprint

SETTINGS_OF_STATE = ("values", "compression_chunk", "precondition")
"""A loaded state must have been made with the same values of these settings. All other settings are restored
from it."""
GRADIENT_MAX = 1e18
"""Beyond it the second moment would overflow and stay infinite."""


class DeMo(Optimizer):
    """Decoupled momentum (arXiv 2411.19870): each rank keeps its momentum, and sends only the largest components.

    Gradients must stay local to each rank. So do not wrap the model in DistributedDataParallel, which averages them, or
    run every backward pass under its `no_sync`; `step` is the only exchange. All ranks must start from the same
    parameters (the first step checks this) and call `step` equally often. Each rank has its own `state_dict`.

    With `values="vote"` only signs travel. They are added and decoded in integers and applied exactly, with the same
    code as a swarm's nodes. So the parameters are always equal on all ranks, bit for bit, on different hardware too.
    With `values="float"` the arithmetic is the published one, step for step. Ranks may then drift apart if their
    hardware adds floats in different orders.

        params               float32, in any form that torch's optimizers take; a param group may override every setting
                             except `process_group`. To compute in bfloat16, keep float32 masters and use autocast
        compression_decay    β of the momentum
        compression_topk     k, components selected from each chunk
        compression_chunk    edge of a chunk; 64 with votes
        weight_decay         decoupled, θ ← θ·(1 − lr·weight_decay), for every trained parameter
        process_group        the ranks that exchange; by default the default group, or without torch.distributed only
                             this process
        lr                   a scheduler may change it between steps; all ranks use the value of the first rank
        update_topk          with votes: number of components that a step applies in each chunk, the strongest of all
                             ranks together; dropped components return to the momentum of their senders. 0: no limit
        values               "vote" or "float", see above
        magnitude            of a parameter's step: "sign", or with votes "clipped", see `thinwire_proto.exact.decode`
        precondition         "adam" divides the gradient by the root of its second moment, which stays local
        precondition_beta    decay of that second moment

    The defaults are those of the published algorithm. Better settings found by our experiments are the defaults of a
    swarm, in `thinwire_proto.contract.DemoSpec`.

    A gradient that is None counts as zero: the momentum decays and is sent as usual, and the votes of other ranks reach
    the parameter. If a gradient is not finite, or above 1e18, the rank sends nothing in this step, leaves its momentum
    unchanged, and increments `dropped`. The first step of a param group fixes which of its parameters are trained
    (`requires_grad`). docs/optimizer.md has more.

    Raises ConfigError for invalid settings, and on all ranks if the settings of the ranks differ.
    """

    _step_supports_amp_scaling = True
    """torch's GradScaler then calls `step` even if gradients overflow. It would skip the step otherwise, and the other
    ranks would wait for this one. It sets `grad_scale` and `found_inf` for the time of the step."""

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
        values: Literal["vote", "float"] = "vote",
        magnitude: Literal["sign", "clipped"] = "sign",
        precondition: Literal["none", "adam"] = "none",
        precondition_beta: float = 0.99,
    ) -> None:
        settings = {
            "compression_decay": compression_decay,
            "compression_topk": compression_topk,
            "compression_chunk": compression_chunk,
            "update_topk": update_topk,
            "values": values,
            "magnitude": magnitude,
            "precondition": precondition,
            "precondition_beta": precondition_beta,
        }
        self._begin_anew(process_group)
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay} | settings)

    def __getstate__(self) -> dict[str, Any]:
        if self._process_group is not None:
            raise ConfigError(
                "a DeMo with a process_group can be neither copied nor pickled; create another one, and load the "
                "state_dict of this one"
            )
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, or of one that was pickled: with the state of torch, and counts that begin anew. torch calls this
        in `load_state_dict` too, where group and counts stay."""
        super().__setstate__(state)
        if not hasattr(self, "_all_gather"):
            self._begin_anew(None)

    def _begin_anew(self, process_group: dist.ProcessGroup | None) -> None:
        """All that is not in the state of torch."""
        self._process_group = process_group
        self._groups: dict[int, ParamGroup] = {}  # by number; a group is added at its first step
        self._all_gather = AllGather(process_group)
        self._equal_payloads = EqualPayloads()
        self._has_stepped = False
        self._ranks_most = 1  # that a step has had
        self._agreement_hash = b""  # of `_agreement` when it last changed; empty: not known
        self.dropped = 0

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises ConfigError for invalid settings, and for parameters that are sharded or not float32."""
        super().add_param_group(param_group)
        try:
            _refuse_partial(self.param_groups[-1])
            # saved with the state, because the tiled momentum does not show the shapes
            self.param_groups[-1]["shapes"] = [list(tensor.shape) for tensor in self.param_groups[-1]["params"]]
            settings_of(self.param_groups[-1])
            check_rates(*_rates(self.param_groups[-1]))
            _trained(self.param_groups[-1])
        except ConfigError:
            self.param_groups.pop()
            raise

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent since the optimizer was created, including padding; see `AllGather`."""
        return self._all_gather.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._all_gather.bytes_received

    @torch.no_grad()
    def fingerprint(self) -> int:
        """A number, 0 … 2⁶⁴ − 1, that depends on all bits of the trained parameters. Equal parameters give equal
        fingerprints."""
        return fingerprint((tensor for group in self.param_groups for tensor in _trained(group)), 0)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step with one exchange. All ranks must call it. closure: recomputes the loss and returns it."""
        if only_asks_for_state(self):
            self._begin()
            return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with _without_autocast():
            self._step()
        return loss

    def _step(self) -> None:
        groups = self._begin()
        if not self._has_stepped:
            stepped = [tensor for group in groups.values() for tensor in group.parameters]
            if all(tensor.grad is None for tensor in stepped):
                refuse_replaced("DeMo", stepped)
            self._has_stepped = True
        rates = [_rates(group) for group in self.param_groups]
        for rate in rates:
            check_rates(*rate)
        scale = getattr(self, "grad_scale", None)  # of a GradScaler; None: there is none, or it has unscaled
        unscale = 1.0 if scale is None else 1 / float(scale)
        gradients = {
            number: [_gradient(tensor, unscale) for tensor in group.parameters] for number, group in groups.items()
        }
        payloads: dict[int, bytes] = {}
        overflowed = bool(getattr(self, "found_inf", False))
        if not overflowed and _all_finite([gradient for tensors in gradients.values() for gradient in tensors]):
            for number, group in groups.items():
                payloads[number] = group.extract(gradients[number], rates[number][0])
        else:
            self.dropped += 1
        del gradients  # free the memory during the exchange, which takes long
        try:
            rates, gathered = self._gather(rates, payloads)
        except BaseException:
            for group in groups.values():
                group.put_back()
            raise
        if any(rate for rate, _ in rates):  # while it is 0 from the beginning, so is each momentum
            self._equal_payloads.see(gathered)
        for number, group in groups.items():
            group.apply([sent[number] for sent in gathered if number in sent], *rates[number])

    def _begin(self) -> dict[int, ParamGroup]:
        """Create the groups that have trained parameters, with new or loaded state."""
        for number, options in enumerate(self.param_groups):
            settings, trained = settings_of(options), _trained(options)
            known = [parameter for parameter in options["params"] if self.state.get(parameter)]
            changed = {id(parameter) for parameter in known} ^ {id(parameter) for parameter in trained}
            if known and changed:
                index = next(n for n, parameter in enumerate(options["params"]) if id(parameter) in changed)
                raise ConfigError(
                    f"requires_grad of parameter {index} of param group {number} has changed since the first step; "
                    "use add_param_group for parameters that are trained later, or create a new optimizer"
                )
            begun = self._groups.get(number)
            if begun is None:
                _refuse_partial(options)
            if not trained or (begun and begun.settings == settings):
                continue
            for name in SETTINGS_OF_STATE:
                if begun and getattr(begun.settings, name) != getattr(settings, name):
                    raise ConfigError(
                        f"{name} of param group {number} cannot change after the first step; create a new optimizer"
                    )
            self._groups[number] = self._restore(group_of(trained, settings))
            self._agreement_hash = b""
        return self._groups

    def _restore(self, group: ParamGroup) -> ParamGroup:
        """Copy torch's `state` into the group's tensors, which then become torch's state."""
        for parameter, learned in zip(group.parameters, group.state(), strict=True):
            for name, tensor in self.state.get(parameter, {}).items():
                learned[name].copy_(tensor)
            self.state[parameter] = learned
        return group

    def _gather(
        self, rates: list[tuple[float, float]], payloads: dict[int, bytes]
    ) -> tuple[list[tuple[float, float]], list[dict[int, bytes]]]:
        """The one exchange. Returns the first rank's rates, and all ranks' payloads by group number."""
        if self._all_gather.ranks < self._ranks_most:
            raise ConfigError(
                f"DeMo has stepped with {self._ranks_most} ranks, and torch.distributed has {self._all_gather.ranks} "
                "now; this rank would go on without the others. Take the last step before destroy_process_group"
            )
        self._all_gather.check()
        self._ranks_most = self._all_gather.ranks
        if self._ranks_most == 1:
            return rates, [payloads]
        if not self._agreement_hash:
            self._agreement_hash = hashlib.sha256(canonical_json(self._agreement())).digest()[:16]
        message = msgpack.packb([self._agreement_hash, rates, payloads])
        gathered = [
            msgpack.unpackb(data, strict_map_key=False) for data in self._all_gather.gather(message, self._device)
        ]
        if any(agreement != gathered[0][0] for agreement, _, _ in gathered):
            self._check_equal()
        check_equal_rates([theirs for _, theirs, _ in gathered])
        return [(rate, decay) for rate, decay in gathered[0][1]], [sent for _, _, sent in gathered]

    @property
    def _device(self) -> torch.device:
        """Of the first parameter that is trained."""
        trained = (parameter for group in self._groups.values() for parameter in group.parameters)
        return next((parameter.device for parameter in trained), torch.device("cpu"))

    def _agreement(self) -> dict[str, Any]:
        """The present settings of all groups, and the parameters: all ranks must have the same."""
        groups = {f"param group {number}": described(group) for number, group in self._groups.items()}
        return groups | {"parameters": f"{self.fingerprint():016x}"}

    def _check_equal(self) -> None:
        """Raise ConfigError with the differences of the ranks. All of them take part, because all have seen that the
        hashes differ. These may be of different steps, so all describe themselves anew, now and in the next step."""
        self._agreement_hash = b""
        agreements = self._all_gather.gather(msgpack.packb(self._agreement()), self._device)
        check_equal([msgpack.unpackb(data) for data in agreements])

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """As in torch; the settings are restored with the state.

        Raises ConfigError, without changing anything, if the state does not fit these parameters or was made with other
        SETTINGS_OF_STATE.
        """
        for number, (saved, options) in enumerate(zip(state_dict["param_groups"], self.param_groups, strict=False)):
            _check_state(number, saved, options, state_dict["state"])
        super().load_state_dict(state_dict)
        self._groups.clear()
        self._agreement_hash = b""


def _refuse_partial(options: dict[str, Any]) -> None:
    """Raises ConfigError for a trained parameter that this rank does not hold whole."""
    refuse_partial("DeMo", ((name, tensor) for name, tensor in named(options) if tensor.requires_grad))


def _trained(options: dict[str, Any]) -> list[Tensor]:
    """The trained parameters of a torch param group; tied ones appear once. Raises ConfigError."""
    trained = {id(tensor): tensor for tensor in options["params"] if tensor.requires_grad and tensor.numel()}
    for tensor in trained.values():
        if tensor.dtype != torch.float32:
            raise ConfigError(
                f"DeMo needs float32 parameters, but one is {str(tensor.dtype).removeprefix('torch.')}, where rounding "
                "may lose a step. Keep float32 masters: leave the model in float32, and use autocast"
            )
    if len({tensor.device for tensor in trained.values()}) > 1:
        raise ConfigError("all parameters of a param group must be on one device; make one param group for each device")
    return list(trained.values())


def _rates(options: dict[str, Any]) -> tuple[float, float]:
    """Learning rate and weight decay. Raises ConfigError if one is no number."""
    for name in ("lr", "weight_decay"):
        if not isinstance(options[name], (Real, Tensor)):
            raise ConfigError(f"{name} must be a number; it is {options[name]!r}")
    return float(options["lr"]), float(options["weight_decay"])


def _gradient(parameter: Tensor, factor: float) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    dense = (gradient.to_dense() if gradient.is_sparse else gradient).detach().float().contiguous()
    return dense if factor == 1 else dense * factor


def _all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether all gradients are finite and below GRADIENT_MAX. Waits for the device once."""
    if not gradients:
        return True
    device = gradients[0].device
    largest = [torch.linalg.vector_norm(gradient, math.inf).to(device) for gradient in gradients]
    return bool((torch.stack(largest) < GRADIENT_MAX).all())  # false for NaN


def _check_state(number: int, saved: dict[str, Any], options: dict[str, Any], state: dict[int, Any]) -> None:
    """Raises ConfigError."""
    for name in SETTINGS_OF_STATE:
        if name not in saved:
            raise ConfigError(f"this is not a state of DeMo: its param group {number} has no {name}")
        if saved[name] != options[name]:
            raise ConfigError(
                f"param group {number}: the state was made with {name}={saved[name]!r}, and the optimizer with "
                f"{options[name]!r}; create the optimizer with the setting of the state"
            )
    for index, (there, here) in enumerate(zip(saved["shapes"], options["shapes"], strict=False)):
        if there != here:
            raise ConfigError(f"parameter {index} of param group {number} is {there} in the state, and {here} here")
    known = [bool(state.get(key)) for key in saved["params"]]
    trained = {id(tensor) for tensor in _trained(options)}
    for index, (there, tensor) in enumerate(zip(known, options["params"], strict=False)):
        if any(known) and there != (id(tensor) in trained):
            raise ConfigError(
                f"parameter {index} of param group {number} was {'trained' if there else 'frozen'} in the state, and "
                "is not here; set requires_grad as it was before loading"
            )


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Disable autocast inside the block: a step does not need it, and the exact decode refuses it."""
    with ExitStack() as stack:
        for device_type in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        yield
