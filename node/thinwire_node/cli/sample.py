"""The command `thinwire-node sample`: what the model of this node writes now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from thinwire_node.kinds import KINDS, name_of
from thinwire_node.storage.blob_cache import BLOBS, BlobCache
from thinwire_node.storage.state import DATA_FILE
from thinwire_proto.blobs import BlobMissing
from thinwire_proto.contract import parse_contract
from thinwire_proto.errors import ConfigError, ContractError, PayloadError, ReplicaError
from thinwire_proto.generation import Sampling, first_prompt, generate, prompt_tokens, text_of, tokenizer_of
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import data_kind_of, task_of

NOT_YET = "this node has no model yet: it saves one some time after it has joined"


def sample(folder: Path, prompt: str | None, sampling: Sampling) -> Iterator[str]:
    """Yield the prompt, and pieces of the text after it as they come. Raises ConfigError if the node in this state
    directory has no model that writes text."""
    try:
        contract = parse_contract((folder / "contract.json").read_bytes())
        parameters = KINDS[name_of(contract)].parameters(folder, contract)
        blobs, kind = BlobCache(folder / BLOBS), data_kind_of(contract.data)
        file = (folder / DATA_FILE).read_bytes() if kind.file_bytes_max(contract.data) else b""
        data = kind.open(file, contract, blobs)
        model = Stateless(task_of(contract.model).model("cpu", blobs))
        tokenizer = tokenizer_of(model, data)
    except FileNotFoundError:
        raise ConfigError(f"{folder}: {NOT_YET}") from None
    except (OSError, ContractError, PayloadError, ReplicaError, BlobMissing) as error:
        raise ConfigError(f"{folder}: its model cannot be read: {error}") from None
    if tokenizer is None:
        raise ConfigError(f"a model of kind {contract.model.kind!r} writes no text")
    prompt = first_prompt(tokenizer) if prompt is None else prompt
    tokens = prompt_tokens(tokenizer, prompt)
    yield prompt
    yield from text_of(tokenizer, tokens, generate(model, parameters, tokens, sampling, tokenizer.end))
