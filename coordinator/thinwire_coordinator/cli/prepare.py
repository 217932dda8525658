"""The command `thinwire-coordinator prepare`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from thinwire_common.number_arguments import LARGEST, count, number, within
from thinwire_common.units import read_bytes_size
from thinwire_proto.errors import UsageError

if TYPE_CHECKING:
    from thinwire_coordinator.prepare.preparation import Settings

SHARD_BYTES_MIN, SHARD_BYTES_MAX = 1 << 10, 1 << 30
HELD_OUT_MAX = 0.5
VOCABULARY_MIN, VOCABULARY_MAX = 257, 1 << 20
"""Tokens of a trained tokenizer; the fewest are 256 bytes and the end token."""

CONTEXT_MAX = 1 << 24
IMAGE_SIZE_MAX = 4096
"""Pixels, as in `ImageManifest`."""


def add_prepare(command: argparse.ArgumentParser) -> None:
    """Add the options of `prepare`. Does not import what it runs."""
    command.add_argument(
        "sources",
        nargs="*",
        metavar="[NAME=]SOURCE",
        help="a folder, a file, a glob, an address such as s3://… or https://…, or hf://datasets/OWNER/NAME[:SPLIT]",
    )
    command.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write")
    command.add_argument(
        "--show",
        type=within(1, LARGEST),
        metavar="N",
        help="print the first N conversations of each source, with what counts marked, and prepare nothing",
    )
    command.add_argument(
        "--images", metavar="FOLDER", help="prepare images instead; the folder has a sub-folder for each class"
    )
    command.add_argument(
        "--size",
        type=within(1, IMAGE_SIZE_MAX, "pixels"),
        default=224,
        metavar="PIXELS",
        help="width and height of an image; default 224",
    )
    tokens = command.add_mutually_exclusive_group()
    tokens.add_argument(
        "--tokenizer",
        default="bytes",
        metavar="PATH",
        help="a tokenizer.json, a folder with one, a name in the Hub's cache, or 'bytes' (default)",
    )
    tokens.add_argument(
        "--train-tokenizer",
        type=within(VOCABULARY_MIN, VOCABULARY_MAX, "tokens"),
        metavar="VOCABULARY",
        help="train a tokenizer of this size on the sources",
    )
    command.add_argument("--end-token", metavar="TOKEN", help="the token that ends a document, or 'none'")
    command.add_argument(
        "--read-special-tokens",
        action="store_true",
        help="text that spells a special token becomes that token, as chats need it",
    )
    command.add_argument(
        "--text-key", default="text", metavar="KEY", help="key or column with a document's text; default text"
    )
    command.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="the Jinja template that writes conversations; default that of the tokenizer's folder",
    )
    command.add_argument(
        "--context",
        type=within(2, CONTEXT_MAX, "tokens"),
        default=1024,
        metavar="TOKENS",
        help="model.context of a run with conversations, which are packed for it; default 1024",
    )
    command.add_argument(
        "--conversations-apart",
        action="store_true",
        help="one conversation in a sample, for models that cannot keep several apart",
    )
    command.add_argument(
        "--held-out", type=_share, default=0.005, metavar="SHARE", help="share of documents held out; default 0.5%%"
    )
    command.add_argument(
        "--shard-bytes", type=_size, default=2 << 20, metavar="SIZE", help="size of a shard; default 2MiB"
    )
    command.add_argument(
        "--bad-max",
        type=within(0, LARGEST),
        default=10,
        metavar="N",
        help="parts of a source that may be unreadable; default 10",
    )
    command.add_argument("--threads", type=count, metavar="N", help="threads that tokenize; default all cores")
    command.set_defaults(command=_prepare)


def _prepare(arguments: argparse.Namespace) -> None:
    if bool(arguments.images) == bool(arguments.sources):
        raise UsageError("prepare: name either sources of text or --images FOLDER")
    if arguments.out is None and arguments.show is None:
        raise UsageError("prepare: --out FOLDER names the folder to write")
    if arguments.show is not None and (arguments.images or arguments.train_tokenizer):
        raise UsageError("--show is for conversations, with a tokenizer that there is: --tokenizer PATH, or bytes")
    if arguments.end_token is not None and (arguments.train_tokenizer or arguments.tokenizer == "bytes"):
        raise UsageError(
            "--end-token names a token of the tokenizer that --tokenizer PATH gives; bytes have no such token, and a "
            "tokenizer of --train-tokenizer has its own"
        )
    try:
        if arguments.show is not None:
            _show(arguments)
        else:
            print(_images(arguments) if arguments.images else _text(arguments))
    except KeyboardInterrupt:
        print(
            f"stopped; start the same command again to {'begin anew' if arguments.images else 'go on'}", file=sys.stderr
        )
        raise


def _text(arguments: argparse.Namespace) -> str:
    from thinwire_coordinator.prepare.preparation import prepare  # noqa: PLC0415 - imports torch
    from thinwire_coordinator.prepare.progress import Shown  # noqa: PLC0415
    from thinwire_coordinator.prepare.summary import summary  # noqa: PLC0415

    settings = _settings(arguments)
    return summary(settings.out, prepare(settings, Shown()))


def _show(arguments: argparse.Namespace) -> None:
    """Print the first conversations."""
    from thinwire_coordinator.prepare.progress import Shown  # noqa: PLC0415
    from thinwire_coordinator.prepare.summary import preview  # noqa: PLC0415 - imports torch

    for text in preview(_settings(arguments), arguments.show, Shown(), coloured=sys.stdout.isatty()):
        print(text)


def _settings(arguments: argparse.Namespace) -> Settings:
    from thinwire_coordinator.prepare.preparation import Settings  # noqa: PLC0415 - imports torch
    from thinwire_coordinator.prepare.sources import parse_sources  # noqa: PLC0415
    from thinwire_coordinator.prepare.tokenizing import limit_threads  # noqa: PLC0415

    limit_threads(arguments.threads or _cores())
    return Settings(
        sources=parse_sources(tuple(arguments.sources)),
        out=arguments.out or Path(),
        tokenizer=arguments.tokenizer,
        train_vocabulary=arguments.train_tokenizer,
        end_token=arguments.end_token,
        read_special=arguments.read_special_tokens,
        text_key=arguments.text_key,
        chat_template=arguments.chat_template,
        context=arguments.context,
        packed=not arguments.conversations_apart,
        held_out=arguments.held_out,
        shard_bytes=arguments.shard_bytes,
        bad_max=arguments.bad_max,
    )


def _images(arguments: argparse.Namespace) -> str:
    from thinwire_coordinator.prepare.images import ImageSettings, prepare_images  # noqa: PLC0415 - imports torch
    from thinwire_coordinator.prepare.progress import Shown  # noqa: PLC0415
    from thinwire_coordinator.prepare.summary import summary_of_images  # noqa: PLC0415

    settings = ImageSettings(
        folder=arguments.images,
        out=arguments.out,
        size=arguments.size,
        held_out=arguments.held_out,
        shard_bytes=arguments.shard_bytes,
        bad_max=arguments.bad_max,
        threads=arguments.threads or _cores(),
    )
    return summary_of_images(settings.out, prepare_images(settings, Shown()))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _share(text: str) -> float:
    """A share such as 0.005 or 0.5%."""
    of = 100 if text.endswith("%") else 1
    wanted = f"0 to {HELD_OUT_MAX:.0%}"
    return number(text.removesuffix("%"), wanted, lambda found: 0 <= found <= HELD_OUT_MAX * of) / of


def _size(text: str) -> int:
    """A size such as 2097152, 2MB or 2MiB."""
    try:
        size = read_bytes_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not SHARD_BYTES_MIN <= size <= SHARD_BYTES_MAX:
        raise argparse.ArgumentTypeError(f"must be a size of 1KiB to 1GiB, such as 2MiB, not {text}")
    return size
