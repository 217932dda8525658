"""Runs one target under atheris, libFuzzer for Python: `python -m fuzz.with_atheris TARGET [libFuzzer's options]`.

libFuzzer chooses by coverage which inputs to damage further; this package's damage, which knows the formats, is its
mutator. Needs the extra `fuzz`.
"""

from __future__ import annotations

import random
import sys

import atheris

from fuzz.corpus import CORPUS, keep, kept

PACKAGES = ["thinwire_proto", "thinwire_common", "thinwire_coordinator", "thinwire_node"]


def main() -> None:
    with atheris.instrument_imports(include=PACKAGES):
        from fuzz.target import try_one  # noqa: PLC0415 - what is imported here is instrumented
        from fuzz.targets import all_targets  # noqa: PLC0415
    name, *options = sys.argv[1:]
    target = next(one for one in all_targets() if one.name == name)
    for data in target.valid:
        keep(name, data)
    live = [*target.valid, *kept(name)]

    def damage(data: bytes, size_max: int, seed: int) -> bytes:
        rng = random.Random(seed)
        return target.damage(rng, data if rng.random() < 0.9 else rng.choice(live), live)[:size_max]

    def one_input(data: bytes) -> None:
        try_one(target, data)

    atheris.Setup([sys.argv[0], *options, str(CORPUS / name.replace(" ", "-"))], one_input, custom_mutator=damage)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
