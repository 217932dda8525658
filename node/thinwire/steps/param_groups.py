"""The parameters of a model in the two groups of `Muon`: matrices, and embeddings, heads and all else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from thinwire_proto.errors import ConfigError

ParamGroup = dict[str, Any]


def muon_groups(model: nn.Module, adamw_for: Iterable[str] = ()) -> list[ParamGroup]:
    """The trained parameters of a model in groups for `Muon`.

    These take steps of AdamW: whatever is not a matrix; the weights of embedding modules, also where another module
    shares them; and a matrix whose rows are as many as those of the largest embedding, if there is only one, since it
    is the head. The head of a model without embeddings cannot be told from other matrices.

    adamw_for: names of modules or parameters that take steps of AdamW too, as `named_parameters` and `named_modules`
    spell them. Raises ConfigError if the model has none of such a name.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"muon_groups takes a model, because it looks for embeddings; this is {type(model).__name__}")
    if isinstance(adamw_for, str):
        raise ConfigError(f"adamw_for takes names, for example [{adamw_for!r}]")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    others = _embeddings_and_head(model, trained) | _named(model, adamw_for)
    return grouped((one, one.dim() == 2 and one not in others) for one in trained)


def grouped(parameters: Iterable[tuple[Tensor, bool]]) -> list[ParamGroup]:
    """Parameters in groups by whether they take steps of Muon."""
    groups = {wanted: ParamGroup(params=[], is_matrices=wanted) for wanted in (True, False)}
    for parameter, is_matrix in parameters:
        groups[is_matrix]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def _embeddings_and_head(model: nn.Module, trained: Sequence[Tensor]) -> set[Tensor]:
    embeddings = {one.weight for one in model.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)}
    rows = max((len(one) for one in embeddings), default=0)
    heads = [one for one in trained if one.dim() == 2 and len(one) == rows and one not in embeddings]
    return embeddings | (set(heads) if len(heads) == 1 else set())


def _named(model: nn.Module, names: Iterable[str]) -> set[Tensor]:
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    found: set[Tensor] = set()
    for name in names:
        if name not in modules and name not in parameters:
            raise ConfigError(f"adamw_for: the model has no module or parameter {name!r}")
        found |= {parameters[name]} if name in parameters else set(modules[name].parameters())
    return found
