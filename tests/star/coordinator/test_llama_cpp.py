"""Tests that llama.cpp converts a merged model that `export` wrote, opens it, and computes what we compute.

The converter and the vocabularies come with llama.cpp's source, whose folder LLAMA_CPP names. The sdist of
llama-cpp-python has it as vendor/llama.cpp. That package opens the model, if it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from support.adapters import base_folder
from support.prepared import prepared
from thinwire_coordinator.cli.sample import chat_prompt
from thinwire_coordinator.export.export import export_folder
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_proto.contract import RunSpec
from thinwire_proto.data.json_tokenizer import JsonTokenizer

SOURCE = Path(os.environ.get("LLAMA_CPP", "") or "/nowhere")
pytestmark = pytest.mark.skipif(
    not (SOURCE / "convert_hf_to_gguf.py").is_file(), reason="LLAMA_CPP names no folder with llama.cpp's source"
)
ASKED, GREEDY_TOKENS, TOLERANCE = "What's the capital of Zürich?  12345", 12, 1e-4
NORMAL, CONTROL = 1, 3
"""Types of tokens in GGUF."""
TEMPLATE = (
    "{%- for message in messages %}{{- '<|' + message.role + '|>' + message.content + eos_token }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"intermediate_size": 96, "max_position_embeddings": 128, "head_dim": 16}


@dataclass(frozen=True)
class Family:
    """vocabulary: the name of llama.cpp's file. digits: that stand together. end: the token that ends a turn."""

    model_type: str
    vocabulary: str
    digits: str
    end: str
    tied: bool
    rope_theta: float


FAMILIES = {
    "qwen3": Family("qwen3", "qwen2", "", "<|im_end|>", tied=True, rope_theta=1e6),
    "llama": Family("llama", "llama-bpe", "{1,3}", "<|eot_id|>", tied=False, rope_theta=5e5),
}


def gguf() -> Any:
    if str(SOURCE / "gguf-py") not in sys.path:
        sys.path.insert(0, str(SOURCE / "gguf-py"))
    return import_module("gguf")


def base_of(family: Family, folder: Path) -> Path:
    """A small base in bfloat16 with the whole tokenizer of its family."""
    fields = gguf().GGUFReader(SOURCE / "models" / f"ggml-vocab-{family.vocabulary}.gguf").fields
    names = ("tokens", "token_type", "merges")
    tokens, types, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in names)
    kinds = list(zip(tokens, types, strict=True))
    words = {token: number for number, (token, kind) in enumerate(kinds) if kind == NORMAL}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    library = tokenizers.Tokenizer(tokenizers.models.BPE(words, pairs, ignore_merges=family.model_type == "llama"))
    split, byte_level = tokenizers.pre_tokenizers.Split, tokenizers.pre_tokenizers.ByteLevel
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            split(tokenizers.Regex(WORDS % family.digits), "isolated"),
            byte_level(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens([token for token, kind in kinds if kind == CONTROL])
    config = SIZES | {"model_type": family.model_type, "vocab_size": len(tokens), "rope_theta": family.rope_theta}
    config |= {"tie_word_embeddings": family.tied, "eos_token_id": library.token_to_id(family.end)}
    base = base_folder(folder, torch.bfloat16, config=config)
    library.save(str(base / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": family.end, "chat_template": TEMPLATE}
    (base / "tokenizer_config.json").write_text(json.dumps(about))
    return base


def merged_of(family: Family, folder: Path) -> tuple[Path, JsonTokenizer]:
    """A folder with a merged model, and its tokenizer."""
    base = base_of(family, folder / "base")
    answer = {"role": "assistant", "content": "yes"}
    rows = [{"messages": [{"role": "user", "content": f"{number}?"}, answer]} for number in range(40)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared(folder / "data", folder / "chats.jsonl", tokenizer=str(base), context=64, held_out=0.2)
    model = {"kind": "lora", "base": str(base), "context": 64}
    run = {"model": model, "data": {"kind": "tokens", "folder": str(folder / "data")}}
    (folder / "state").mkdir()
    create_state(folder / "state", RunSpec.model_validate(run))
    with closing(open_state(folder / "state")) as state:
        replica, generator = replica_at_head(state), torch.Generator().manual_seed(5)
        for tensor in replica.tensors.values():
            tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator))
        export_folder(state, replica, folder / "merged", merge=True)
        assert isinstance(state.data.tokenizer, JsonTokenizer)
        return folder / "merged", state.data.tokenizer


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_llama_cpp_opens_a_merged_model(family: Family, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="pip install sentencepiece, which the converter needs")
    merged, tokenizer = merged_of(family, tmp_path)
    out = tmp_path / "model.gguf"
    words = [sys.executable, str(SOURCE / "convert_hf_to_gguf.py"), str(merged), "--outfile", str(out)]
    done = subprocess.run([*words, "--outtype", "f32"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    read = gguf().GGUFReader(out)
    told = {name: field.contents() for name, field in read.fields.items()}
    assert told["tokenizer.chat_template"] == TEMPLATE
    assert told["tokenizer.ggml.eos_token_id"] == tokenizer.library.token_to_id(family.end)
    assert told[f"{family.model_type}.rope.freq_base"] == family.rope_theta
    tensors = load_file(merged / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert len(read.tensors) == len(tensors)
    embedding = next(tensor for tensor in read.tensors if tensor.name == "token_embd.weight")
    assert np.array_equal(embedding.data, tensors["model.embed_tokens.weight"].float().numpy())

    llama_cpp = pytest.importorskip("llama_cpp", reason="pip install llama-cpp-python")
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    in_float32 = dict.fromkeys(("type_k", "type_v"), llama_cpp.GGML_TYPE_F32)  # of the cache; its default is float16
    theirs = llama_cpp.Llama(str(out), n_ctx=64, logits_all=True, verbose=False, **in_float32)
    text = chat_prompt(tokenizer, ASKED)
    prompt = tokenizer.encode(text)
    assert theirs.tokenize(text.encode(), add_bos=False, special=True) == prompt.tolist()
    written = list(islice(theirs.generate(prompt.tolist(), temp=0.0, repeat_penalty=1.0), GREEDY_TOKENS))
    plain = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    expected = plain.generate(prompt[None], do_sample=False, max_new_tokens=GREEDY_TOKENS)[0, len(prompt) :]
    assert written == expected.tolist()
    with torch.no_grad():
        logits = plain(prompt[None]).logits[0, -1].numpy()
    assert np.abs(theirs.scores[len(prompt) - 1] - logits).max() < TOLERANCE * np.abs(logits).max()
