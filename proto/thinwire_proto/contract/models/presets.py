"""Model sizes by name, for `model.preset` in a run file."""

from __future__ import annotations

from thinwire_proto.contract.models import ModelSpec
from thinwire_proto.contract.models.decoder import DecoderSpec
from thinwire_proto.contract.models.llama import LlamaSpec

BYTE_PRESETS: dict[str, DecoderSpec] = {
    "byte-1m": DecoderSpec(width=128, layers=4, heads=4, hidden=384, context=256),
    "byte-10m": DecoderSpec(width=384, layers=6, heads=6, hidden=1024, context=512),
    "byte-30m": DecoderSpec(width=512, layers=9, heads=8, hidden=1408, context=1024),
    "byte-125m": DecoderSpec(width=768, layers=18, heads=12, hidden=2048, context=1024),
    "byte-350m": DecoderSpec(width=1024, layers=28, heads=16, hidden=2752, context=2048),
    "byte-1b": DecoderSpec(width=2048, layers=20, heads=16, hidden=5504, context=2048),
}
"""For text as bytes."""
LLAMA_PRESETS: dict[str, LlamaSpec] = {
    "llama-1m": LlamaSpec(vocabulary=2048, width=128, layers=4, heads=2, kv_heads=1, hidden=384, context=256),
    "llama-10m": LlamaSpec(vocabulary=8192, width=384, layers=5, heads=6, kv_heads=2, hidden=896, context=512),
    "llama-30m": LlamaSpec(vocabulary=16384, width=512, layers=7, heads=8, kv_heads=4, hidden=1408, context=1024),
    "llama-124m": LlamaSpec(vocabulary=50304, width=768, layers=12, heads=12, kv_heads=12, hidden=2048, context=1024),
    "llama-350m": LlamaSpec(vocabulary=50304, width=1024, layers=24, heads=16, kv_heads=8, hidden=3072, context=2048),
    "llama-1b": LlamaSpec(vocabulary=50304, width=2048, layers=20, heads=32, kv_heads=8, hidden=5632, context=2048),
}
"""For tokenized text. 50,304 tokens hold GPT-2's 50,257. For a tokenizer of another size, set `vocabulary` too."""
PRESETS: dict[str, ModelSpec] = {**BYTE_PRESETS, **LLAMA_PRESETS}
"""Model sizes by name, from about 1M to 1B parameters. Widths are multiples of 64, so that tiles need no padding."""
