"""The DeMo optimizer for any training script: `from thinwire import DeMo`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, Literal, overload

import msgpack
import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from thinwire.demo import checks
from thinwire.demo.all_gather import AllGather
from thinwire.demo.param_group import ParamGroup, check_rates, described, group_of, settings_of
from thinwire.demo.sharded_group import ShardedVoteGroup
from thinwire.demo.shards import SHARD_LATER, Site
from thinwire.placement import check_between_sites, mesh_of, named, refuse_replaced
from thinwire.script import only_asks_for_state
from thinwire_proto.contract import canonical_json
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.fingerprint import fingerprint


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
                             except `process_group`. To compute in bfloat16, keep float32 masters and use autocast. All
                             whole, or with votes all sharded by `fully_shard` over one dimension of a mesh, a site
        compression_decay    β of the momentum
        compression_topk     k, components selected from each chunk
        compression_chunk    edge of a chunk; 64 with votes
        weight_decay         decoupled, θ ← θ·(1 − lr·weight_decay), for every trained parameter
        process_group        the ranks that exchange; by default the default group, or without torch.distributed only
                             this process. With shards, those that hold the same ones at all sites; if there is one
                             site alone, none
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

    Raises ConfigError for invalid settings, and on all ranks if the settings of the ranks differ."""

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
        if process_group is not None and dist.is_initialized() and dist.get_rank(process_group) < 0:
            raise ConfigError("DeMo: this process is not in the process group that it was given")
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
        self._site: Site | None = None  # with sharded parameters
        self._in_site = self._all_gather  # the same between the ranks of the site
        self._problem = ""  # of the site in this step; the other sites hear of it too
        self._equal_payloads = checks.EqualPayloads()
        self._has_stepped = False
        self._ranks_most = 1  # that a step has had
        self._agreement_hash = b""  # of `_agreement` when it last changed; empty: not known
        self.dropped = 0

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises ConfigError for invalid settings, and for parameters that are not float32, or sharded in
        another way than by `fully_shard` over one dimension of a mesh."""
        super().add_param_group(param_group)
        try:
            self._check_placement()
            # saved with the state, because the tiled momentum does not show the shapes
            self.param_groups[-1]["shapes"] = [list(tensor.shape) for tensor in self.param_groups[-1]["params"]]
            settings_of(self.param_groups[-1])
            check_rates(*checks.rates_of(self.param_groups[-1]))
            checks.trained_of(self.param_groups[-1])
        except ConfigError:
            self.param_groups.pop()
            raise

    def _check_placement(self) -> None:
        """Find the site, if the parameters are sharded. Raises ConfigError if they are neither whole nor sharded alike,
        or if the ranks of the exchange cannot be those of other sites."""
        trained = [(n, t) for group in self.param_groups for n, t in named(group) if t.requires_grad]
        mesh = mesh_of("DeMo", trained)
        if mesh is None or self._site is not None:
            return
        if any(group["values"] == "float" for group in self.param_groups):
            raise ConfigError("values='float' takes whole parameters alone; omit it, or leave the model unwrapped")
        check_between_sites("DeMo", mesh, self._process_group)
        self._site = Site(mesh)
        self._in_site = AllGather(self._site.group)
        self._all_gather = AllGather(self._process_group, is_alone=self._process_group is None)

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
        fingerprints, whole or sharded. With shards, all ranks of a site must ask for it."""
        parameters = [tensor for group in self.param_groups for tensor in checks.trained_of(group)]
        if self._site is None:
            return fingerprint(parameters, 0)
        part = self._site.fingerprint(parameters)
        parts = self._in_site.gather(part.to_bytes(8, "big"), self._device)
        return sum(int.from_bytes(one, "big") for one in parts) % (1 << 64)

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
                refuse_replaced("DeMo", stepped, SHARD_LATER)
            self._has_stepped = True
        rates = [checks.rates_of(group) for group in self.param_groups]
        for rate in rates:
            check_rates(*rate)
        scale = getattr(self, "grad_scale", None)  # of a GradScaler; None: there is none, or it has unscaled
        unscale = 1.0 if scale is None else 1 / float(scale)
        gradients = {
            number: [checks.gradient_of(tensor, unscale) for tensor in group.parameters]
            for number, group in groups.items()
        }
        payloads: dict[int, bytes] = {}
        finite = not bool(getattr(self, "found_inf", False)) and checks.all_finite([*chain(*gradients.values())])
        if self._site is not None:
            finite = self._agree_in_site(finite, rates)
        if finite:
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
            settings, trained = settings_of(options), checks.trained_of(options)
            known = [parameter for parameter in options["params"] if self.state.get(parameter)]
            changed = {id(parameter) for parameter in known} ^ {id(parameter) for parameter in trained}
            if known and changed:
                index = next(n for n, parameter in enumerate(options["params"]) if id(parameter) in changed)
                raise ConfigError(
                    f"requires_grad of parameter {index} of param group {number} has changed since the first step; "
                    "give DeMo only the parameters that require a gradient, and use add_param_group for those that are "
                    "trained later; a new optimizer begins without momentum"
                )
            begun = self._groups.get(number)
            if begun is None:
                self._check_placement()
            if not trained or (begun and begun.settings == settings):
                continue
            for name in checks.SETTINGS_OF_STATE:
                if begun and getattr(begun.settings, name) != getattr(settings, name):
                    raise ConfigError(
                        f"{name} of param group {number} cannot change after the first step; create a new optimizer"
                    )
            sharded = self._site and ShardedVoteGroup(trained, settings, self._site)
            self._groups[number] = self._restore(sharded or group_of(trained, settings))
            self._agreement_hash = b""
        return self._groups

    def _restore(self, group: ParamGroup) -> ParamGroup:
        """Copy torch's `state` into the group's tensors, which then become torch's state."""
        group.load([self.state.get(parameter, {}) for parameter in group.parameters])
        for parameter, learned in zip(group.parameters, group.state(), strict=True):
            self.state[parameter] = learned
        return group

    def _agree_in_site(self, finite: bool, rates: Sequence[tuple[float, float]]) -> bool:
        """Whether the gradients of all ranks of the site are finite. They also hear here whether one of them has to
        compare settings again, or has other rates."""
        assert self._site is not None
        own = [float(number) for pair in rates for number in pair]
        asked = [float(not finite), float(not self._agreement_hash), *own, *(-number for number in own)]
        overflowed, changed, *found = self._site.largest(asked, self._device)
        if changed:
            self._agreement_hash = b""
        self._problem = checks.differing_rates(found[: len(own)], [-number for number in found[len(own) :]])
        return not overflowed

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
        if not self._agreement_hash and (self._ranks_most > 1 or self._site is not None):
            self._agreement_hash = hashlib.sha256(canonical_json(self._agreement())).digest()[:16]
        if self._problem:
            self._agreement_hash = b""
        if self._ranks_most == 1:
            self._raise_problem()
            return rates, [payloads]
        message = msgpack.packb([self._agreement_hash, rates, payloads])
        gathered = [
            msgpack.unpackb(data, strict_map_key=False) for data in self._all_gather.gather(message, self._device)
        ]
        if any(agreement != gathered[0][0] for agreement, _, _ in gathered):
            self._check_equal()
        self._raise_problem()
        checks.check_equal_rates([theirs for _, theirs, _ in gathered])
        return [(rate, decay) for rate, decay in gathered[0][1]], [sent for _, _, sent in gathered]

    @property
    def _device(self) -> torch.device:
        trained = (parameter for group in self._groups.values() for parameter in group.parameters)
        return next((parameter.device for parameter in trained), torch.device("cpu"))

    def _agreement(self) -> dict[str, Any]:
        """The present settings of all groups, and the parameters: all ranks must have the same."""
        groups = {f"param group {number}": described(group) for number, group in self._groups.items()}
        found = groups | {"parameters": f"{self.fingerprint():016x}"}
        if self._site is None:
            return found
        of_ranks = self._in_site.gather(msgpack.packb(groups), self._device)
        if any(one != of_ranks[0] for one in of_ranks):
            self._problem = self._problem or "the ranks of a site have different settings"
        site = {"ranks": self._site.ranks, "number of this rank": self._site.rank}
        return found | {"site": site | ({"problem": self._problem} if self._problem else {})}

    def _raise_problem(self) -> None:
        if self._problem:
            raise ConfigError(f"the ranks' optimizers differ: {self._problem}")

    def _check_equal(self) -> None:
        """Raise ConfigError with the differences of the ranks. All of them take part, because all have seen that the
        hashes differ. These may be of different steps, so all describe themselves anew, now and in the next step."""
        self._agreement_hash = b""
        agreements = self._all_gather.gather(msgpack.packb(self._agreement()), self._device)
        checks.check_equal([msgpack.unpackb(data) for data in agreements])

    @torch.no_grad()
    def state_dict(self) -> StateDict:
        """As in torch. With shards, learned tensors are DTensors, and all ranks of a site must ask for it."""
        found = super().state_dict()
        numbers = {
            id(tensor): number
            for options, saved in zip(self.param_groups, found["param_groups"], strict=True)
            for tensor, number in zip(options["params"], saved["params"], strict=True)
        }
        for group in self._groups.values():
            if isinstance(group, ShardedVoteGroup):
                for tensor, saved in zip(group.parameters, group.saved(), strict=True):
                    found["state"][numbers[id(tensor)]] = saved
        return found

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """As in torch; the settings are restored with the state.

        Raises ConfigError, without changing anything, if the state does not fit these parameters or was made with other
        SETTINGS_OF_STATE."""
        for number, (saved, options) in enumerate(zip(state_dict["param_groups"], self.param_groups, strict=False)):
            checks.check_state(number, saved, options, state_dict["state"])
        super().load_state_dict(state_dict)
        self._groups.clear()
        self._agreement_hash = b""


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Disable autocast inside the block: a step does not need it, and the exact decode refuses it."""
    with ExitStack() as stack:
        for device_type in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        yield
