"""Finds the tokenizer that `--tokenizer` names: a `tokenizer.json`, a folder with one, or a name in the Hub's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from thinwire_common.hub_cache import folder_of
from thinwire_coordinator.prepare.tokenizing import TokenizerFiles, check_end
from thinwire_proto.data.json_tokenizer import CONFIG_FILE, TOKENIZER_FILE, JsonTokenizer
from thinwire_proto.errors import ConfigError
from thinwire_proto.lfs_pointer import IS_LFS_POINTER, POINTER_BYTES_MAX, is_lfs_pointer

KEPT = (CONFIG_FILE, "special_tokens_map.json", "chat_template.jinja", "chat_template.json")
"""Files of a tokenizer's folder that are handed on. The vocabulary is in `tokenizer.json`."""
FILE_BYTES_MAX = 1 << 20
USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
NO_END = "none"


def find_tokenizer(path: Path, end_token: str | None) -> TokenizerFiles:
    """The tokenizer at a path, or of a repository in the Hub's cache. end_token: the token that ends a document,
    "none", or None to find it.

    Raises ConfigError.
    """
    path = folder_of(path.as_posix())
    if path.is_dir():
        files = _of_folder(path)
    elif path.is_file():
        files = TokenizerFiles(path, None)
    else:
        raise ConfigError(f"--tokenizer: {path}: there is no such file or folder")
    with files.path.open("rb") as file:
        if is_lfs_pointer(file.read(POINTER_BYTES_MAX)):
            raise ConfigError(f"--tokenizer: {files.path}: {IS_LFS_POINTER}")
    if end_token == NO_END:
        return files
    word = end_token or _configured_end(files) or _usual_end(files)
    if word is None:
        raise ConfigError(
            f"{path}: does not say which token ends a document; name it with --end-token, or say --end-token {NO_END}"
        )
    return check_end(word, files)


def _of_folder(folder: Path) -> TokenizerFiles:
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ConfigError(
            f"--tokenizer: {folder}: has no {TOKENIZER_FILE}; write one with "
            f"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    kept = {name: folder / name for name in KEPT if (folder / name).is_file()}
    for name, file in kept.items():
        if file.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{file}: is larger than {FILE_BYTES_MAX:,} bytes, too large for a {name}")
    contents = {name: file.read_bytes() for name, file in kept.items()}
    return TokenizerFiles(
        path, None, {name: data for name, data in contents.items() if data}
    )  # an empty one says nothing


def _configured_end(files: TokenizerFiles) -> str | None:
    """The `eos_token` of a `tokenizer_config.json`, which is a word or a table with a word."""
    if CONFIG_FILE not in files.files:
        return None
    try:
        config: Any = from_json(files.files[CONFIG_FILE])
    except ValueError as error:
        raise ConfigError(f"{files.path.parent / CONFIG_FILE}: is not JSON: {error}") from None
    word = config.get("eos_token") if isinstance(config, dict) else None
    word = word.get("content") if isinstance(word, dict) else word
    return word if isinstance(word, str) else None


def _usual_end(files: TokenizerFiles) -> str | None:
    library = JsonTokenizer(files.path, None).library
    special = {token.content for token in library.get_added_tokens_decoder().values()}
    return next((word for word in USUAL_ENDS if word in special), None)
