"""Captions that a model writes by greedy decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from assets import invalid_option
from loader.errors import InvalidSpec

from ..decoding import crop_centre, kind_field, sample_images
from ..featurizer import Features
from .batching import Array, Row
from .model import CAPTIONERS, ModelFeaturizer, check_network, network_loader

if TYPE_CHECKING:
    import torch


class CaptionModel(Protocol):
    """Captioning model, loaded by the function that `network` names."""

    size_px: int
    """Side of its input images in px."""

    def generate(self, pixels: "torch.Tensor", max_tokens: int) -> "Mapping[str, torch.Tensor]":
        """Write captions for uint8 [N, size_px, size_px, 3], always taking the likeliest token.

        - tokens: int64 [N, max_tokens], padded after the caption.
        - logprobs: float [N, max_tokens], log-probabilities of the tokens, 0 after the caption.
        - length: int64 [N], tokens including the end token.
        """

    def text(self, tokens: Array) -> str:
        """Return the caption's text from int64 [max_tokens], without start, end and padding tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption(ModelFeaturizer):
    """Field `generated.txt`: the model's caption of a photo, or of a clip's middle frame.

    Columns: generated_tokens, number of tokens; generated_logprob, mean log-probability of a token.
    """

    network: str
    """Name of `CAPTIONERS`, or "module:function" that loads a `CaptionModel`."""
    image: str | None = "jpg"
    """Field of photos; None skips them."""
    video: str | None = None
    """Field of clips; None skips them."""
    max_tokens: int = 32
    """Length of the longest caption in tokens."""
    field: str = "generated.txt"
    """Name of the output field."""
    name: str = "caption"
    """Name of the featurizer."""
    output_columns: ClassVar[tuple[str, ...]] = ("generated_tokens", "generated_logprob")

    def __post_init__(self) -> None:
        ModelFeaturizer.__post_init__(self)
        check_network(CAPTIONERS, self.network)
        if not 1 <= self.max_tokens <= 4096:
            raise invalid_option("max_tokens", self.max_tokens, "1 to 4096")
        if self.field.rpartition(".")[2] != "txt":
            raise InvalidSpec(
                f"field {self.field!r} is not text; accepted: names ending in txt",
                what="field",
                given=self.field,
                accepted="names ending in txt",
            )

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.inputs, (self.field,))

    def load(self, path: Path, dtype: "torch.dtype", place: str) -> CaptionModel:
        model: CaptionModel = network_loader(CAPTIONERS, self.network)(path, dtype, place)
        return model

    def prepare(self, model: CaptionModel, kind: str, sample: Mapping[str, bytes]) -> Sequence[Row]:
        field = kind_field(self.inputs, kind)
        images = sample_images(kind, sample, field, lambda n_frames: [n_frames // 2])
        return [{"pixels": crop_centre(image, model.size_px)} for image in images]

    def run(self, model: CaptionModel, batch: Mapping[str, "torch.Tensor"]) -> Mapping[str, "torch.Tensor"]:
        return model.generate(batch["pixels"], self.max_tokens)

    def finish(self, model: CaptionModel, kind: str, rows: Sequence[Row]) -> Features:
        (row,) = rows
        # Never 0, since the end token counts.
        n_tokens = int(row["length"])
        mean = float(row["logprobs"].sum(dtype="float64")) / n_tokens
        columns = {"generated_tokens": n_tokens, "generated_logprob": round(mean, 6)}
        return Features(fields={self.field: model.text(row["tokens"]).strip()}, columns=columns)
