"""The work of `prepare --images`: a folder with a sub-folder for each class becomes shards of square images.

A class is a sub-folder with at least one image that can be read, so which classes there are is known before the rest is
read. Images are sorted by the hash of their file, on disk, as documents are: see `spill`.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from thinwire_common.files import replace_synced
from thinwire_coordinator.prepare.checkpoint import claimed, disk_errors_named
from thinwire_coordinator.prepare.held_out import Side, Split, side_of, split
from thinwire_coordinator.prepare.preparation import BAD_MAX, HELD_OUT_SHARE, SHARD_BYTES
from thinwire_coordinator.prepare.problems import Problems
from thinwire_coordinator.prepare.progress import Shown
from thinwire_coordinator.prepare.shards import BlobWriter
from thinwire_coordinator.prepare.sources import WORK_FOLDER, SourceFile, find_files
from thinwire_coordinator.prepare.spill import Spill
from thinwire_coordinator.prepare.tokenizing import KEY_BYTES, Encoded
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.image_manifest import LABEL_BYTES, ImageManifest
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE
from thinwire_proto.errors import ConfigError
from thinwire_proto.lfs_pointer import IS_LFS_POINTER, is_lfs_pointer
from thinwire_proto.limits import PREPARE_SILENT_S
from thinwire_proto.models.extras import import_extra

FILES_AT_ONCE = 64
OF_ARCHIVES = "__MACOSX"
"""A folder that macOS puts into archives, with files that have the names of images and are none."""
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "eval"}
ADDRESS = re.compile(r"\s*<[^<>]* at 0x[0-9a-f]+>")
"""The form in which Python shows an object."""
NAME = "images"


@dataclass(frozen=True)
class ImageSettings:
    """The settings of `prepare --images`. folder: any address of a folder. size: width and height, in pixels."""

    folder: str
    out: Path
    size: int
    held_out: float = HELD_OUT_SHARE
    shard_bytes: int = SHARD_BYTES
    bad_max: int = BAD_MAX
    threads: int = 1


@dataclass
class PreparedImages:
    """The result of `prepare --images`. bad: images that were skipped."""

    manifest: ImageManifest
    manifest_hash: str
    split: Split
    bad: int


def prepare_images(settings: ImageSettings, shown: Shown) -> PreparedImages:
    """Write the folder that `thinwire_proto.data.image_manifest` describes. Raises ConfigError.

    A call that was interrupted begins anew.
    """
    if not settings.held_out:
        raise ConfigError("--held-out: some images must be held out; it must be above 0")
    library = _library()
    with claimed(settings.out), disk_errors_named(settings.out):
        found = _by_folder(find_files(settings.folder, PREPARE_SILENT_S, settings.out), shown)
        problems = Problems(settings.bad_max, shown.say)
        classes = _classes(found, settings, library, problems, shown)
        files = [file for name in classes for file in found[name]]
        work = settings.out / WORK_FOLDER
        shutil.rmtree(work, ignore_errors=True)
        spill, total = Spill(work, np.dtype("<u1")), Side()
        shown.begin(NAME, sum(file.size or 0 for file in files))
        read = 0
        try:
            for file, image in _read(files, classes, settings, library):
                read += file.size or 0
                if isinstance(image, str):
                    problems.skip(file.name, image)
                    continue
                spill.add(image)
                total = total.plus(side_of(image))
                shown.count(read, 1, 0, 0)
            spill.close()
        finally:
            spill.abandon()
        halves = split(NAME, spill.sorted(), total, settings.held_out)
        made = _write(settings, list(classes), spill.sorted(), halves)
        shutil.rmtree(work)
    return PreparedImages(made, hashlib.sha256(made.written()).hexdigest(), halves, problems.bad)


def _write(settings: ImageSettings, classes: list[str], images: Iterator[Encoded], halves: Split) -> ImageManifest:
    blobs = BlobWriter(settings.out / BLOBS_FOLDER)
    held_out = _shards(islice(images, halves.held_out.documents), halves.held_out, blobs, settings)
    train = _shards(images, halves.train, blobs, settings)
    manifest = ImageManifest(image_size=settings.size, classes=tuple(classes), train=train, held_out=held_out)
    blobs.keep_only({shard.hash for shard in (*train, *held_out)})
    replace_synced(settings.out / MANIFEST_FILE, manifest.written())
    return manifest


def _shards(images: Iterable[Encoded], side: Side, blobs: BlobWriter, settings: ImageSettings) -> tuple[Shard, ...]:
    """Shards of nearly equal numbers of images, of at most `shard_bytes` if an image is not larger."""
    images = iter(images)
    each = max(1, settings.shard_bytes * side.documents // side.tokens)
    count = -(-side.documents // each)
    shards = []
    for number in range(count):
        images_in = side.documents * (number + 1) // count - side.documents * number // count
        data = b"".join(image.tokens.tobytes() for image in islice(images, images_in))
        shards.append(blobs.shard(data, images_in, 0))
    return tuple(shards)


def _by_folder(files: list[SourceFile], shown: Shown) -> dict[str, list[SourceFile]]:
    """The files of each sub-folder, in order of its name."""
    found: dict[str, list[SourceFile]] = {}
    beside = 0
    for file in sorted(files, key=lambda file: file.name.split("/")):
        folder, slash, _ = file.name.partition("/")
        if not slash:
            beside += 1
        elif OF_ARCHIVES not in file.name.split("/"):
            found.setdefault(folder, []).append(file)
    if beside:
        shown.say(f"left out: files beside the sub-folders: {beside:,}")
    return found


def _classes(
    found: dict[str, list[SourceFile]], settings: ImageSettings, library: Any, problems: Problems, shown: Shown
) -> dict[str, int]:
    """The sub-folders with an image that can be read, in order, with their numbers. Raises ConfigError if there are
    not two, or if one has a name that no manifest can hold."""
    for name in found:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"--images: {settings.folder}: the name of the sub-folder {name!r} is not UTF-8; rename it"
            ) from None
    with ThreadPoolExecutor(settings.threads, "images") as pool:
        checked = pool.map(lambda files: _without_image(files, settings.size, library), found.values())
        why = dict(zip(found, checked, strict=True))
    suffixes = library.Image.registered_extensions()
    for name in (name for name in found if why[name]):
        for file, said in zip(found[name], why[name], strict=True):
            if PurePath(file.name).suffix.lower() in suffixes:
                problems.skip(file.name, said)
        shown.say(f"left out: {name}/ is no class, because it has no image that can be read")
    classes = [name for name in found if not why[name]]
    if len(classes) < 2:
        hint = next((said for name in found for said in why[name]), "")
        raise ConfigError(
            f"--images: {settings.folder}: must have a sub-folder for each class, at least two with images that can be "
            f"read; it has {len(classes)}{f' (a file {hint})' if hint else ''}"
        )
    if all(name.lower() in SPLITS for name in classes):
        shown.say(
            f"warning: the classes are {', '.join(classes)}, which look like parts of a data set; if they are, give "
            "one of them as --images. Images to measure the loss on are held out anyway"
        )
    return {name: number for number, name in enumerate(classes)}


def _without_image(files: list[SourceFile], size: int, library: Any) -> list[str]:
    """Say what is wrong with each of these files. Empty if one of them is an image."""
    found = []
    for file in files:
        image = _image(file, size, library)
        if not isinstance(image, str):
            return []
        found.append(image)
    return found


def _read(
    files: list[SourceFile], classes: dict[str, int], settings: ImageSettings, library: Any
) -> Iterator[tuple[SourceFile, Encoded | str]]:
    """The images as records; for one that cannot be read, what is wrong. FILES_AT_ONCE are in memory."""
    with ThreadPoolExecutor(settings.threads, "images") as pool:
        for begin in range(0, len(files), FILES_AT_ONCE):
            part = files[begin : begin + FILES_AT_ONCE]
            yield from zip(
                part, pool.map(lambda file: _record(file, classes, settings.size, library), part), strict=True
            )


def _record(file: SourceFile, classes: dict[str, int], size: int, library: Any) -> Encoded | str:
    image = _image(file, size, library)
    if isinstance(image, str):
        return image
    digest, pixels = image
    label = classes[file.name.partition("/")[0]].to_bytes(LABEL_BYTES, "little")
    return Encoded(digest[: KEY_BYTES - LABEL_BYTES] + label, 0, np.frombuffer(label + pixels, np.uint8))


def _image(file: SourceFile, size: int, library: Any) -> tuple[bytes, bytes] | str:
    """The hash of a file and the pixels of its image; or what is wrong."""
    unreadable = "is not an image that can be read"
    try:
        with file.open() as opened:
            content = opened.read()
    except (OSError, ValueError) as error:
        return f"{unreadable}: {error}"
    if is_lfs_pointer(content):
        return IS_LFS_POINTER
    try:
        with library.Image.open(io.BytesIO(content)) as image:
            upright = library.ImageOps.exif_transpose(_in_eight_bits(image, library)).convert("RGB")
            square = library.ImageOps.fit(upright, (size, size), library.Image.Resampling.BICUBIC)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Pillow raises any, such as NotImplementedError; --bad-max bounds them
        return f"{unreadable}: {ADDRESS.sub('', str(error)) or type(error).__name__}"
    return hashlib.sha256(content).digest(), square.tobytes()


def _in_eight_bits(image: Any, library: Any) -> Any:
    """The image with at most 8 bits a channel: Pillow would cut off all larger values. Raises ValueError if nobody says
    which of them is white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # older versions of Pillow
        return library.Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("it has 32 bits a pixel, and does not say which value is white; convert it to 8 or 16")
    return image


def _library() -> Any:
    import_extra("PIL.ImageOps", "images")
    return import_extra("PIL", "images")
