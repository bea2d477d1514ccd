"""Embed images and texts in one space, like CLIP, for search, near-duplicates and classification."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from assets import invalid_option

from ..decoding import crop_centre, decoded, kind_field, sample_images, three_frames
from ..featurizer import Column, Features
from .batching import Array, Row
from .model import EMBEDDERS, ModelFeaturizer, check_network, network_loader

if TYPE_CHECKING:
    import torch

STORED = ("float32", "float16")


class Embedder(Protocol):
    """Embedding model for images and texts, loaded by the function that `network` names."""

    size_px: int
    """Side of its input images in px."""

    def images(self, pixels: "torch.Tensor") -> "torch.Tensor":
        """Return embeddings [N, d] of uint8 [N, size_px, size_px, 3] in sRGB."""

    def texts(self, **tokens: "torch.Tensor") -> "torch.Tensor":
        """Return embeddings [N, d] of texts; `tokens`: results of the method `tokens`, stacked."""

    def tokens(self, text: str) -> Mapping[str, Array]:
        """Return a text as arrays of fixed shapes. Raises: InvalidWeights without a text tower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(ModelFeaturizer):
    """Field `embedding.npy`: float32 or float16 [d] of length 1; of a clip, the sum over first, middle and last frame.

    Column, if `caption` is set: caption_cosine, -1 to 1, between image and caption; None without one.
    """

    network: str
    """Name of `EMBEDDERS`, or "module:function" that loads an `Embedder`."""
    image: str | None = "jpg"
    """Field of photos; None skips them."""
    video: str | None = "mp4"
    """Field of clips; None skips them."""
    text: str | None = None
    """Field of texts; None skips them."""
    caption: str | None = None
    """Txt field of a photo or clip to compare with; None to skip."""
    field: str = "embedding.npy"
    """Name of the output field."""
    stored: str = "float32"
    """Dtype of the output field."""
    name: str = "embedding"
    """Name of the featurizer."""

    def __post_init__(self) -> None:
        ModelFeaturizer.__post_init__(self)
        check_network(EMBEDDERS, self.network)
        if self.stored not in STORED:
            raise invalid_option("stored", self.stored, ", ".join(STORED))

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        fields = {"image": self.image, "video": self.video, "text": self.text}
        out: dict[str, tuple[str, ...]] = {}
        for kind, field in fields.items():
            if field is None:
                continue
            out[kind] = (field,)
            if self.caption and kind != "text":
                out[kind] = (field, self.caption)
        return out

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.inputs, (self.field,))

    @property
    def dims(self) -> Sequence[str]:
        return ("component",)

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        out: dict[str, tuple[str, ...]] = dict.fromkeys(self.inputs, ())
        if self.caption:
            for kind in out.keys() - {"text"}:
                out[kind] = ("caption_cosine",)
        return out

    def load(self, path: Path, dtype: "torch.dtype", place: str) -> Embedder:
        model: Embedder = network_loader(EMBEDDERS, self.network)(path, dtype, place)
        if self.text or self.caption:
            # Raises here if the weights have no text tower, not after hours of work.
            model.tokens("")
        return model

    def prepare(self, model: Embedder, kind: str, sample: Mapping[str, bytes]) -> Sequence[Row]:
        field = kind_field(self.inputs, kind)
        if kind == "text":
            return [model.tokens(decoded(sample, field))]
        rows: list[Row] = [
            {"pixels": crop_centre(image, model.size_px)}
            for image in sample_images(kind, sample, field, three_frames)
        ]
        if self.caption and sample.get(self.caption):
            rows.append(model.tokens(decoded(sample, self.caption)))
        return rows

    def run(self, model: Embedder, batch: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:
        if "pixels" in batch:
            return {"image": model.images(batch["pixels"])}
        return {"text": model.texts(**batch)}

    def finish(self, model: Embedder, kind: str, rows: Sequence[Row]) -> Features:
        # A sample of text has one row, its text; others have a row per image, then one of the caption.
        texts = [row["text"] for row in rows if "text" in row]
        if kind == "text":
            own = _direction(texts)
        else:
            own = _direction([row["image"] for row in rows if "image" in row])
        columns: dict[str, Column] = {}
        if self.columns[kind]:
            columns["caption_cosine"] = None
            if texts:
                columns["caption_cosine"] = _cosine(own, _direction(texts))
        return Features(fields={self.field: own.astype(self.stored)}, columns=columns)


def _direction(vectors: Sequence[Array]) -> Array:
    # Unit vectors, so that no frame weighs more than another.
    total = np.sum([_unit(vector.astype(np.float64)) for vector in vectors], axis=0)
    return _unit(total)


def _unit(vector: Array) -> Array:
    length = np.sqrt(np.square(vector).sum())
    unit: Array
    # A model may return zeros, which have no direction.
    if length:
        unit = vector / length
    else:
        unit = vector
    return unit


def _cosine(first: Array, second: Array) -> float:
    return round(float(first @ second), 6)
