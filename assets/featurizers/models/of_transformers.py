"""Models of the library `transformers`, out of a folder that `save_pretrained` wrote: no hub is asked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loader.errors import InvalidWeights, MissingDependency

from .pictures import normalised
from .weights import said

Array = np.ndarray[Any, np.dtype[Any]]

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and standard deviation of CLIP's training pictures, by channel."""

_CAPTIONERS = {
    "vision-encoder-decoder": "VisionEncoderDecoderModel",
    "blip": "BlipForConditionalGeneration",
}
"""model_type of config.json -> class."""


def transformers() -> Any:
    """Return the library. Raises: MissingDependency."""
    try:
        import transformers as library
    except ImportError as error:
        raise MissingDependency(
            f"this network needs the package 'transformers' ({error}): pip install transformers"
        ) from error
    library.utils.logging.disable_progress_bar()
    return library


class Clip:
    """An `Embedder` (see `..embedding`) of a CLIPModel; without a tokenizer in the folder, of pictures alone."""

    def __init__(self, model: Any, tokenizer: Any, path: Path) -> None:
        self.model, self.tokenizer, self.path = model, tokenizer, path
        self.size_px: int = model.config.vision_config.image_size
        self.mean, self.std = _mean_std(path)

    def images(self, pixels: Tensor) -> Tensor:
        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        seen = self.model.vision_model(pixel_values=normalised(pixels, mean, std, self.model.dtype))
        out: Tensor = self.model.visual_projection(seen.pooler_output)
        return out

    def texts(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        read = self.model.text_model(input_ids=input_ids, attention_mask=attention_mask)
        out: Tensor = self.model.text_projection(read.pooler_output)
        return out

    def tokens(self, text: str) -> Mapping[str, Array]:
        if self.tokenizer is None:
            raise InvalidWeights(
                f"{self.path.name} has no tokenizer: it embeds no texts; leave text and caption None"
            )
        length = self.model.config.text_config.max_position_embeddings
        ids = self.tokenizer(
            text, padding="max_length", truncation=True, max_length=length, return_tensors="np"
        )
        return {name: np.asarray(ids[name][0], np.int64) for name in ("input_ids", "attention_mask")}


def load_clip(path: Path, dtype: torch.dtype, place: str) -> Clip:
    """Load a CLIPModel and its tokenizer. Raises: InvalidWeights; MissingDependency."""
    _check_type(path, {"clip": "CLIPModel"})
    library = transformers()
    model = _loaded(library.CLIPModel, path, dtype, place)
    return Clip(model, _tokenizer(library, path), path)


class Captioner:
    """A `CaptionModel` (see `..caption`) of a model that writes about `pixel_values`."""

    def __init__(self, model: Any, tokenizer: Any, path: Path) -> None:
        self.model, self.tokenizer = model, tokenizer
        vision = getattr(model.config, "encoder", None) or model.config.vision_config
        self.size_px: int = vision.image_size
        self.mean, self.std = _mean_std(path)
        said = model.generation_config
        ends = said.eos_token_id if isinstance(said.eos_token_id, list) else [said.eos_token_id]
        self.ends = [end for end in ends if end is not None]

    def generate(self, pixels: Tensor, max_tokens: int) -> Mapping[str, Tensor]:
        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        written = self.model.generate(
            pixel_values=normalised(pixels, mean, std, self.model.dtype),
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = torch.stack(written.logits, dim=1).float()
        tokens = written.sequences[:, -logits.shape[1] :]
        logprobs = logits.log_softmax(dim=-1).gather(2, tokens[:, :, None])[:, :, 0]
        ended = torch.isin(tokens, tokens.new_tensor(self.ends))
        behind = (ended.cumsum(dim=1) - ended.int()) > 0
        rest = (0, max_tokens - tokens.shape[1])
        pad = torch.nn.functional.pad
        return {
            "tokens": pad(tokens.masked_fill(behind, self._filler), rest, value=self._filler),
            "logprobs": pad(logprobs.masked_fill(behind, 0.0), rest),
            "length": (~behind).sum(dim=1),
        }

    @property
    def _filler(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(self.ends[0] if pad is None else pad)

    def text(self, tokens: Array) -> str:
        words: str = self.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
        return words


def load_captioner(path: Path, dtype: torch.dtype, place: str) -> Captioner:
    """Load a model that writes captions, and its tokenizer. Raises: InvalidWeights; MissingDependency."""
    kind = _check_type(path, _CAPTIONERS)
    library = transformers()
    tokenizer = _tokenizer(library, path)
    if tokenizer is None:
        raise InvalidWeights(f"{path.name} has no tokenizer.json: its captions cannot be read")
    return Captioner(_loaded(getattr(library, kind), path, dtype, place), tokenizer, path)


def _check_type(path: Path, accepted: Mapping[str, str]) -> str:
    """Return the class for the model in a folder. Raises: InvalidWeights."""
    config = path / "config.json"
    if not config.is_file():
        raise InvalidWeights(
            f"{path.name} is no folder with a config.json: give the one that save_pretrained wrote"
        )
    found = json.loads(config.read_bytes()).get("model_type")
    if found not in accepted:
        raise InvalidWeights(
            f"{path.name} holds a model of type {found!r}; accepted: {', '.join(map(repr, accepted))}"
        )
    return accepted[found]


def _loaded(kind: Any, path: Path, dtype: torch.dtype, place: str) -> Any:
    """Load a model of this class. Raises: InvalidWeights."""
    try:
        model, told = kind.from_pretrained(
            path, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidWeights(f"{path.name} does not fit {kind.__name__}: {said(error)}") from error
    missing = sorted(map(str, [*told["missing_keys"], *told["mismatched_keys"]]))
    if missing:  # transformers would draw them at random
        raise InvalidWeights(f"{path.name} lacks weights of {kind.__name__}: {', '.join(missing[:3])}")
    return model.to(place).eval()


def _tokenizer(library: Any, path: Path) -> Any:
    if not (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        return None
    try:
        return library.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidWeights(f"the tokenizer in {path.name} cannot be loaded: {error}") from error


def _mean_std(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (mean, standard deviation) by channel of preprocessor_config.json; CLIP's where there is none."""
    stated = path / "preprocessor_config.json"
    told = json.loads(stated.read_bytes()) if stated.is_file() else {}
    return tuple(told.get("image_mean", MEAN)), tuple(told.get("image_std", STD))
