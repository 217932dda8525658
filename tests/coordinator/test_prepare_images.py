"""`prepare --images`, and the data kind `images` on what it made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from thinwire_coordinator.prepare.images import ImageSettings, PreparedImages, prepare_images
from thinwire_coordinator.prepare.problems import TooManyProblems
from thinwire_coordinator.prepare.progress import Shown
from thinwire_proto.blobs import Blob, BlobFolder, BlobMissing
from thinwire_proto.contract import Contract, Parameter, RunSpec
from thinwire_proto.contract.data.images import ImagesSpec
from thinwire_proto.data.images import DEVIATION, HELD_OUT, MEAN, Images, ImagesKind
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE
from thinwire_proto.errors import ConfigError

COLOURS = {"blue": (10, 20, 240), "green": (20, 230, 30), "red": (250, 10, 10)}
SIZE = 8
EACH = 20


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 20 pictures of each of three colours, each a little different."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(1)
    for name, colour in COLOURS.items():
        (folder / name).mkdir()
        for number in range(EACH):
            pixels = np.clip(np.array(colour) + rng.integers(-9, 10, (16 + number, 24, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.{'png' if number % 2 else 'jpg'}")
    (folder / "README").write_text("not in a class")
    return folder


def made(folder: Path, out: Path, **settings: Any) -> PreparedImages:
    return prepare_images(ImageSettings(str(folder), out, SIZE, **({"shard_bytes": 2000} | settings)), Shown())


def opened(out: Path, **model: Any) -> Images:
    sections = {"kind": "timm", "name": "resnet18", "classes": 3, "image_size": SIZE} | model
    run = RunSpec.model_validate({"model": sections, "data": {"kind": "images", "folder": str(out)}})
    new = ImagesKind().make(run, lambda: None)
    assert isinstance(new.spec, ImagesSpec)
    assert new.spec.folder == ""
    assert set(new.blobs) == {Blob(path.name, path.stat().st_size) for path in (out / BLOBS_FOLDER).iterdir()}
    kept = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": new.spec}
    contract = Contract(**kept, parameters=(Parameter(name="weight", shape=(64, 64)),))
    return ImagesKind().open(new.file, contract, BlobFolder(out / BLOBS_FOLDER))


def test_a_class_whose_name_no_manifest_can_hold_is_named(pictures: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    shutil.copytree(pictures, folder)
    (folder / "blue").rename(folder / os.fsdecode(b"caf\xe9"))
    with pytest.raises(ConfigError, match="is not UTF-8; rename it"):
        made(folder, tmp_path / "out")


def test_sixteen_bits_a_pixel_become_eight_and_thirty_two_are_refused(tmp_path: Path) -> None:
    """Pillow alone makes white of all but the darkest of them."""
    for number, name in enumerate(("dark", "light")):
        (tmp_path / "in" / name).mkdir(parents=True)
        for place in range(12):
            grey = np.full((SIZE, SIZE), 20_000 + 30_000 * number + place, np.uint16)
            Image.fromarray(grey).save(tmp_path / "in" / name / f"{place}.png")
    Image.fromarray(np.full((SIZE, SIZE), 0.5, np.float32)).save(tmp_path / "in/dark/float.tif")
    assert made(tmp_path / "in", tmp_path / "out").bad == 1
    images, labels = opened(tmp_path / "out", classes=2).batch(range(8))
    greys = (images.mean((2, 3)).numpy() * DEVIATION + MEAN) * 255
    expected = np.array([20_000 >> 8, 50_000 >> 8])[labels.numpy()]
    assert np.allclose(greys, expected[:, None], atol=0.01)


def test_a_pass_has_every_image_once_in_its_class(pictures: Path, tmp_path: Path) -> None:
    prepared = made(pictures, tmp_path, held_out=0.1)
    assert prepared.manifest.classes == tuple(COLOURS)
    assert len(prepared.manifest.train) > 3
    train, held_out = (side.documents for side in prepared.split)
    assert train + held_out == len(COLOURS) * EACH
    data = opened(tmp_path)
    images, labels = data.batch(range(train))
    assert (images.shape, images.dtype, labels.dtype) == ((train, 3, SIZE, SIZE), torch.float32, torch.int64)
    means = images.mean((2, 3)).numpy() * DEVIATION + MEAN
    for mean, label in zip(means * 255, labels.tolist(), strict=True):
        assert np.abs(mean - list(COLOURS.values())[label]).max() < 12
    others, _ = data.held_out(HELD_OUT, range(held_out))
    assert data.held_out_sets()[0].samples == held_out
    assert len({image.numpy().tobytes() for image in torch.cat([images, others])}) == len(COLOURS) * EACH


def test_a_batch_reads_the_blobs_that_it_named(pictures: Path, tmp_path: Path) -> None:
    made(pictures, tmp_path)
    data = opened(tmp_path)
    needs = data.needs([range(3, 12)])
    assert len(needs) < len(list((tmp_path / BLOBS_FOLDER).iterdir())) - 1
    for path in (tmp_path / BLOBS_FOLDER).iterdir():
        if path.name not in {blob.hash for blob in needs}:
            path.unlink()
    data.batch(range(3, 12))
    (tmp_path / BLOBS_FOLDER / needs[0].hash).write_bytes(b"short")
    with pytest.raises(BlobMissing):
        data.batch(range(3, 12))


def test_a_file_that_is_no_image_is_counted(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "with bad ones"
    for name in ("blue", "green"):
        shutil.copytree(pictures / name, folder / name)
    (folder / "red").mkdir()
    whole = (pictures / "red" / "1.png").read_bytes()
    for name, content in {"a.png": b"text", "b.png": whole[: len(whole) // 2], "c.png": whole}.items():
        (folder / "red" / name).write_bytes(content)
    assert made(folder, tmp_path / "out").bad == 2
    assert "skipped: red/a.png: is not an image that can be read" in capsys.readouterr().err
    with pytest.raises(TooManyProblems, match=r"red/b\.png: is not an image"):
        made(folder, tmp_path / "strict", bad_max=1)
    assert not (tmp_path / "strict" / MANIFEST_FILE).exists()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0a" * 32 + b"\nsize 12345671\n"


@pytest.mark.parametrize(
    ("added", "bad", "said"),
    [
        ({"__MACOSX/blue/1.jpg": b"\0\5\x16\7", "__MACOSX/pictures.png": b"\0\5\x16\7"}, 0, ""),
        ({"blue/__MACOSX/1.jpg": b"\0\5\x16\7"}, 0, ""),
        ({"azure/notes.txt": b"none yet", "azure/of a clone.csv": b"a,b"}, 0, "left out: azure/ is no class"),
        (
            {"azure/1.jpg": b"", "azure/2.JPG": b"text"},
            2,
            "skipped: azure/2.JPG: is not an image that can be read: cannot",
        ),
        ({"azure/1.jpg": POINTER, "blue/p.png": POINTER}, 2, "skipped: azure/1.jpg: is a pointer of Git LFS"),
        ({"a.jpg": b"beside", "list.txt": b"all"}, 0, "left out: files beside the sub-folders: 3"),
    ],
    ids=["of an archive", "of an archive, inside", "no images", "broken", "pointers", "beside"],
)
def test_a_folder_without_a_readable_image_is_no_class_and_moves_none(
    added: dict[str, bytes], bad: int, said: str, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    shutil.copytree(pictures, folder)
    for name, content in added.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    found = made(folder, tmp_path / "out")
    told = capsys.readouterr().err
    assert found.bad == bad
    assert said in told
    assert " at 0x" not in told
    assert found.manifest_hash == made(pictures, tmp_path / "without").manifest_hash
