"""Finds out whether `transformers.AutoTokenizer` opens a tokenizer as it was.

For some families, such as qwen2, transformers ignores the class in `tokenizer_config.json` and takes the family's own,
which splits text in another way than a tokenizer of the run's own does. The model would then read tokens that it was
not trained on, and no error would say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thinwire_proto.task import Tokenizer

AUTO, FAST = "AutoTokenizer", "PreTrainedTokenizerFast"
PROBE = 'class A:\n    """1234  x"""\n\n\treturn "don\'t"  # é ü 中文 🙂\n\n\n  The end, 3.14.'
"""Text at whose spaces, lines, digits and marks tokenizers differ."""


def class_to_open(folder: Path, tokenizer: Tokenizer) -> str:
    """The class of transformers that opens the exported tokenizer: AUTO, or FAST where AUTO gives other tokens.

    Without transformers on this machine, the answer is AUTO."""
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415 - an extra
    except ImportError:
        return AUTO
    try:
        theirs: Any = AutoTokenizer.from_pretrained(folder)
        same = theirs(PROBE, add_special_tokens=False)["input_ids"] == tokenizer.encode(PROBE).tolist()
    except Exception:  # noqa: BLE001 - a family's own class may raise anything on a foreign tokenizer
        same = False
    return AUTO if same else FAST
