"""Scenes of sites that are saved by torch.distributed.checkpoint, and resumed with another number of ranks.

Gradients are given, since the mean of other ranks' batches would be another one.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from support.site_scenes import BEST, give, mesh_of_sites, network, tensors
from support.site_scenes import full as whole_of
from thinwire import DeMo

SAVED = Path("../checkpoint")
WHOLE = Path("../whole")
SAVED_AFTER, STEPS = 3, 7


class Run:
    """One site's ranks, or one whole rank, with the gradients of the site."""

    def __init__(self, *, is_sharded: bool = True) -> None:
        mesh = mesh_of_sites()
        self.site = mesh.get_local_rank("site")
        self.model = network(mesh if is_sharded else None)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = DeMo(trained, process_group=mesh.get_group("site"), **BEST)
        self.parameters: list[nn.Parameter] = trained

    def steps(self, first: int, last: int) -> str:
        for step in range(first, last):
            give(self.parameters, tensors([tuple(p.shape) for p in self.parameters], step, self.site))
            self.optimizer.step()
        return f"{self.optimizer.fingerprint():016x}"

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds. All sites have the same model, and what their optimizers have learned differs."""
        return {
            "model": get_model_state_dict(self.model),
            f"optimizer of site {self.site}": get_optimizer_state_dict(self.model, self.optimizer),
        }

    def take(self, state: dict[str, Any], *, full: bool = False) -> None:
        wanted = StateDictOptions(full_state_dict=full)
        set_model_state_dict(self.model, state["model"], options=wanted)
        theirs = state[f"optimizer of site {self.site}"]
        set_optimizer_state_dict(self.model, self.optimizer, theirs, options=wanted)


def saved(rank: int) -> Any:
    """The fingerprint when a checkpoint was saved, and at the end. None if another run of ranks has saved one."""
    if SAVED.exists():
        return None
    run = Run()
    at_save = run.steps(0, SAVED_AFTER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(run.state(), checkpoint_id=SAVED)
        whole = get_optimizer_state_dict(run.model, run.optimizer, options=StateDictOptions(full_state_dict=True))
    model = {name: whole_of(tensor) for name, tensor in run.model.state_dict().items()}
    if whole.get("state"):
        torch.save({"model": model, f"optimizer of site {run.site}": whole}, f"{WHOLE}-{run.site}")
    dist.barrier()
    return at_save, run.steps(SAVED_AFTER, STEPS)


def resumed(rank: int) -> Any:
    """The fingerprints after loading and at the end."""
    run = Run()
    state = run.state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(state, checkpoint_id=SAVED)
    run.take(state)
    return run.steps(SAVED_AFTER, SAVED_AFTER), run.steps(SAVED_AFTER, STEPS)


def from_whole(rank: int) -> Any:
    """The fingerprints at the end of whole ranks that took up a checkpoint's whole state, of shards that did, and of
    shards whose optimizer loaded the state of the whole ranks' one."""
    ends: list[str] = []
    plain: dict[str, Any] = {}
    for is_sharded, loads in ((False, False), (True, False), (True, True)):
        run = Run(is_sharded=is_sharded)
        state: dict[str, Any] = torch.load(f"{WHOLE}-{run.site}", weights_only=False)
        run.take(state, full=is_sharded)
        if loads:
            run = Run()
            set_model_state_dict(run.model, state["model"], options=StateDictOptions(full_state_dict=True))
            run.optimizer.load_state_dict(plain)
        plain = plain or copy.deepcopy(run.optimizer.state_dict())
        ends.append(run.steps(SAVED_AFTER, STEPS))
    return ends


SCENES: tuple[Callable[[int], Any], ...] = (saved, resumed, from_whole)
