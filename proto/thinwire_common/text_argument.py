"""Texts on a command line, for argparse."""

from __future__ import annotations

import argparse


class Text:
    """A type of arguments: a text in UTF-8, perhaps of at most so many characters. Python hands on other bytes as half
    characters (PEP 383), which no protocol and no page can carry."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most

    def __call__(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise argparse.ArgumentTypeError("is not UTF-8") from None
        if self._most is not None and len(text) > self._most:
            raise argparse.ArgumentTypeError(f"has at most {self._most} characters; this has {len(text)}")
        return text
