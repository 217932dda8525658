"""The spec of an image classifier of the library timm; `thinwire_proto.models.timm` builds it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from thinwire_proto.contract.models import MODELS, ModelSpec
from thinwire_proto.contract.sections import canonical_json, unit

OPTIONS_BYTES_MAX = 4096
NUMBER_MAX = 1 << 16
LIST_MAX = 64
SET_BY_THINWIRE = {"img_size", "in_chans", "num_classes"}
REFUSED = {
    *("cache_dir", "checkpoint_path", "exportable", "features_only", "out_indices", "pretrained", "pretrained_cfg"),
    *("pretrained_cfg_overlay", "pretrained_strict", "scriptable"),
}
"""Options of timm that fetch or read files, or change what the model returns."""


def read_options(given: object) -> object:
    """Turn a table of a run file into canonical JSON. Raises ValueError if an option is refused.

    The contract comes from a stranger, so options are plain and bounded: timm fetches nothing for them.
    """
    if given == "":
        return given
    if isinstance(given, str):
        if len(given) > OPTIONS_BYTES_MAX:
            raise ValueError(f"has more than {OPTIONS_BYTES_MAX:,} bytes")
        options = from_json(given)  # json raises RecursionError for nested text, which is no ValueError
        if not isinstance(options, dict) or canonical_json(options).decode() != given:
            raise ValueError("is not canonical JSON of a table")
    elif isinstance(given, dict):
        options = given
    else:
        raise ValueError("is not a table")
    for key, value in options.items():
        if key in SET_BY_THINWIRE:
            raise ValueError(f"{key}: follows from image_size and classes; remove it")
        if key in REFUSED:
            raise ValueError(f"{key}: is not allowed; weights are given by `import`, and a node reads no other files")
        if not all(_is_plain(one) for one in (value if isinstance(value, list) else [value])):
            raise ValueError(f"{key}: must be a number up to {NUMBER_MAX}, a text, true or false, or a list of these")
        if isinstance(value, list) and len(value) > LIST_MAX:
            raise ValueError(f"{key}: has more than {LIST_MAX} entries")
    return canonical_json(options).decode()


def _is_plain(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= NUMBER_MAX)


@MODELS.register
class TimmSpec(ModelSpec):
    """An image classifier of the library timm, without BatchNorm."""

    DERIVED: ClassVar[tuple[str, ...]] = ("vocabulary", "context")
    LOCAL: ClassVar[tuple[str, ...]] = ("weights",)
    TAKES: ClassVar[str] = "images"

    kind: Literal["timm"] = "timm"
    weights: str = ""
    """a folder with weights to begin from, as transformers or timm saves them; without it, random"""
    name: str = Field("vit_tiny_patch16_224", pattern=r"^[a-z0-9_]{1,128}$")
    """the model's name in timm, such as convnext_tiny, resnet50_gn or vit_small_patch16_224"""
    classes: int = Field(2, ge=2, le=1 << 20)
    """number of classes"""
    image_size: int = Field(224, ge=8, le=4096, json_schema_extra=unit("px"))
    """width and height of an image"""
    options: Annotated[str, BeforeValidator(read_options)] = ""
    """further arguments of timm's model, as a table, such as drop_path_rate = 0.1"""
    vocabulary: Literal[0] = 0
    """an image has no tokens"""
    context: Literal[1] = 1
    """a sample is one image"""

    def in_words(self) -> str:
        return f"{self.name}, {self.classes} classes, {self.image_size} × {self.image_size} px"
