"""Tests that transformers opens what `export` writes, without custom code, and computes what we compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from support.new_state import make_state
from support.small import small_contract
from thinwire_coordinator.cli.sample import chat_prompt
from thinwire_coordinator.export.export import export_folder
from thinwire_coordinator.export.model_files import AUTO, FAST, class_to_open, write_model
from thinwire_coordinator.hall.ledger.creation import keep_blobs
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_proto.contract import DecoderSpec, ModelSpec, RunSpec
from thinwire_proto.contract.models.llama import LlamaSpec
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.data.byte_tokenizer import ByteTokenizer
from thinwire_proto.data.json_tokenizer import JsonTokenizer
from thinwire_proto.generation import Sampling, generate
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import WritesOn, complete_model, task_of

PROMPT = "def é("
COMMON = {"num_hidden_layers": 2, "num_attention_heads": 4}
SIZES = {
    "mixtral": COMMON | {"hidden_size": 64, "intermediate_size": 80, "num_key_value_heads": 2, "num_local_experts": 4},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
TEMPLATE = """{% for message in messages %}
    {% if loop.first %}first{% endif %}
    {{- '<' + message['role'] + '>' }}
    {% set text = message.content | trim %}
{{ text }}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}
"""


class Chatting(ByteTokenizer):
    """A tokenizer with more files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def files(self) -> dict[str, bytes]:
        return self._files


def opened(folder: Path) -> tuple[Any, Any]:
    return opened_with("AutoModelForCausalLM", folder), opened_with(AUTO, folder)


def opened_with(opener: str, folder: Path) -> Any:
    import transformers  # noqa: PLC0415 - takes seconds, and each worker of the tests collects this file

    return getattr(transformers, opener).from_pretrained(folder)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_greedy_text_are_ours(tmp_path: Path, tied: bool) -> None:
    spec = DecoderSpec(width=64, heads=2, layers=3, hidden=96, context=64, tied=tied)
    task, tokenizer = task_of(spec), ByteTokenizer()
    generator = torch.Generator().manual_seed(1)
    tensors = {p.name: 0.3 * torch.randn(p.shape, generator=generator) for p in task.manifest()}
    write_model(task.hugging_face(tensors), tokenizer, tmp_path, shard_bytes_max=50_000)
    theirs, their_tokenizer = opened(tmp_path)
    prompt = their_tokenizer(PROMPT, return_tensors="pt").input_ids
    assert prompt[0].tolist() == tokenizer.encode(PROMPT).tolist()
    ours = Stateless(task.model("cpu"))
    with torch.no_grad():
        expected = theirs(prompt).logits[0]
        for length in range(1, len(prompt[0]) + 1):
            logits = ours.next_logits(tensors, prompt[0, :length])
            assert torch.allclose(logits, expected[length - 1], atol=1e-5, rtol=1e-5)
            assert logits.std() > 0.1, "logits that are all alike would show nothing"
    written = theirs.generate(prompt, do_sample=False, max_new_tokens=30)[0, len(prompt[0]) :].tolist()
    assert written == list(generate(ours, tensors, prompt[0], Sampling(30, 0.0), tokenizer.end))


def trained_tokenizer(folder: Path) -> JsonTokenizer:
    """A tokenizer with words of its own, and a token that ends a document."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet)
    library.train_from_iterator(["def é(self) -> None: return self.é\n"] * 5, trainer)
    library.save(str(folder / "trained.json"))
    return JsonTokenizer(folder / "trained.json", library.token_to_id("<end>"))


@pytest.mark.parametrize("model_type", ["mixtral", "gpt2"])
def test_a_model_of_transformers_ends_its_text_at_our_tokenizers_end(model_type: str, tmp_path: Path) -> None:
    """Both families have the end of another tokenizer as default: 2, and 50256."""
    tokenizer = trained_tokenizer(tmp_path)
    sizes = SIZES[model_type] | {"model_type": model_type, "vocab_size": tokenizer.vocabulary}
    spec, _ = complete_model(RunSpec.model_validate({"model": {"kind": "hf", "config": sizes}}).model, lambda: None)
    task = task_of(spec)
    generator = torch.Generator().manual_seed(3)
    tensors = {p.name: 0.3 * torch.randn(p.shape, generator=generator) for p in task.manifest()}
    ours = Stateless(task.model("cpu"))
    prompt = tokenizer.encode(PROMPT)
    greedy = list(generate(ours, tensors, prompt, Sampling(20, 0.0), None))
    for end in (tokenizer.end, greedy[8]):
        tokenizer.end = end
        folder = tmp_path / f"end {end}"
        folder.mkdir()
        write_model(task.hugging_face(tensors), tokenizer, folder)
        theirs, their_tokenizer = opened(folder)
        assert their_tokenizer(PROMPT).input_ids == prompt.tolist()
        assert their_tokenizer.convert_tokens_to_ids(their_tokenizer.eos_token) == end
        written = theirs.generate(prompt[None], do_sample=False, max_new_tokens=20)[0, len(prompt) :].tolist()
        expected = list(generate(ours, tensors, prompt, Sampling(20, 0.0), end))
        assert written == (expected if len(expected) == 20 else [*expected, end])
    assert len(expected) < 20


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_with_a_cache_the_logits_are_those_of_the_whole_text(kind: str) -> None:
    """Also past the context, and when a text is not the one before and one more token."""
    context = 12
    if kind == "llama":
        spec: ModelSpec = LlamaSpec(vocabulary=256, context=context, width=64, layers=3, heads=4, kv_heads=2, hidden=80)
    else:
        config = SIZES[kind] | {"model_type": kind, "vocab_size": 256}
        run = {"model": {"kind": "hf", "config": config, "context": context}}
        spec, _ = complete_model(RunSpec.model_validate(run).model, lambda: None)
    task, generator = task_of(spec), torch.Generator().manual_seed(5)
    tensors = {p.name: 0.3 * torch.randn(p.shape, generator=generator) for p in task.manifest()}
    model, text = Stateless(task.model("cpu")), torch.randint(0, 256, (16,), generator=generator)
    assert isinstance(model.model, WritesOn)
    cache, reused = None, 0
    with torch.no_grad():
        for length in (4, 5, 6, 9, 10, 11, 12, 13, 14, 3, 4):
            reused += cache is not None
            logits, cache = model.continued_logits(tensors, text[:length], cache)
            assert torch.allclose(logits, model.next_logits(tensors, text[:length]), atol=1e-5, rtol=1e-5), length
        assert reused == 8
        expected = model.next_logits(tensors, text[:5])
        logits, _ = model.continued_logits(tensors, torch.cat([torch.zeros_like(text[:4]), text[4:5]]), cache)
    assert torch.allclose(logits, expected, atol=1e-5, rtol=1e-5), "earlier tokens are read again"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_an_adapter_opens_on_its_base_and_merged_into_it(tmp_path: Path) -> None:
    from peft import PeftModel  # noqa: PLC0415 - costs each process that collects tests three seconds

    base = tmp_path / "base"
    task_of_base = task_of(DecoderSpec(width=64, heads=2, layers=2, hidden=96, context=64))
    write_model(task_of_base.hugging_face(task_of_base.initial_state(1)), ByteTokenizer(), _made(base))
    spec, blobs = complete_model(LoraSpec(base=str(base), dropout=0.5), lambda: None)
    keep_blobs(_made(tmp_path / "state") / "blobs", blobs, lambda: None)
    contract = small_contract()
    contract = contract.model_copy(update={"model": spec, "parameters": task_of(spec).manifest()})
    state = make_state(tmp_path / "state", contract)
    replica = replica_at_head(state)
    export_folder(state, replica, tmp_path / "adapter")
    export_folder(state, replica, tmp_path / "merged", merge=True)
    assert not (tmp_path / "adapter" / "config.json").exists()
    ours = Stateless(task_of(spec).model("cpu", state.blobs))
    plain, tokenizer = opened(base)
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        found = ours.next_logits(replica.tensors, prompt[0])
        before = plain(prompt).logits[0, -1]
        adapted = PeftModel.from_pretrained(plain, tmp_path / "adapter")(prompt).logits[0, -1]
        whole, tokenizer = opened(tmp_path / "merged")
        merged = whole(prompt).logits[0, -1]
    assert (found - adapted).abs().max() < 1e-5
    assert (found - merged).abs().max() < 1e-5
    assert (found - before).abs().max() > 1e-3
    assert opened_with(AUTO, tmp_path / "adapter")(PROMPT).input_ids == prompt[0].tolist()
    written = whole.generate(prompt, do_sample=False, max_new_tokens=20)[0, len(prompt[0]) :].tolist()
    assert written == list(generate(ours, replica.tensors, prompt[0], Sampling(20, 0.0), None))
    state.close()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_byte_tokenizer_opens_and_reads_all_of_unicode(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    for name, data in tokenizer.files().items():
        (tmp_path / name).write_bytes(data)
    theirs = opened_with(AUTO, tmp_path)
    code_points = (*range(0, 0xD800, 3), *range(0xE000, 0x110000, 97), *range(0x600))  # surrogates are no text
    text = "".join(map(chr, code_points)) + "  two spaces\r\n\ttab "
    tokens = theirs(text).input_ids
    assert tokens == tokenizer.encode(text).tolist()
    assert set(tokens) == set(text.encode())
    assert len(set(tokens)) == 256 - 13, "UTF-8 never has the bytes C0, C1 and F5 to FF"
    assert theirs.decode(tokens) == tokenizer.decode(torch.tensor(tokens)) == text
    assert len(theirs) == 256
    broken = [0x61, 0xFF, 0xE2, 0x82]
    assert theirs.decode(broken) == tokenizer.decode(torch.tensor(broken))


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        "{{ messages | tojson }} {{ messages | tojson(indent=2) }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}",
        "{% if tools is none and documents is none %}{{ messages[0].content }}{% endif %}",
    ],
    ids=["a template", "JSON", "marked and left", "no tools"],
)
def test_a_chat_prompt_is_that_of_transformers(tmp_path: Path, template: str) -> None:
    files = ByteTokenizer().files() | {"chat_template.jinja": template.encode()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    message = [{"role": "user", "content": "Hi\n {{ there }} <é>"}]
    theirs = opened_with(AUTO, tmp_path)
    expected = theirs.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    assert chat_prompt(Chatting(files), message[0]["content"]) == expected
    assert "{{ there }}" in expected


@pytest.mark.parametrize(("family", "opener"), [("qwen2", FAST), ("qwen3", AUTO), ("gpt2", AUTO)])
def test_the_class_is_named_that_gives_the_run_s_tokens(tmp_path: Path, family: str, opener: str) -> None:
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(["class A:\n    def b(self):\n        return 1\n"] * 3, trainer)
    trained.save(str(tmp_path / "trained.json"))
    tokenizer = JsonTokenizer(tmp_path / "trained.json", end=None)
    out = tmp_path / "out"
    out.mkdir()
    for name, data in tokenizer.files().items():
        (out / name).write_bytes(data)
    (out / "config.json").write_text(f'{{"model_type": "{family}"}}')
    assert class_to_open(out, tokenizer) == opener
    right = opened_with(opener, out)
    text = "class A:\n    def b"
    assert right(text)["input_ids"] == tokenizer.encode(text).tolist()
