"""Load transformers, timm and diffusers networks from saved folders, never from a hub."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loader.errors import InvalidWeights, MissingDependency

from ..decoding import normalise_pixels
from .weights import error_text

Array = np.ndarray[Any, np.dtype[Any]]

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and standard deviation of CLIP's training images, per channel."""

# model_type in config.json -> class.
_CAPTIONERS = {
    "vision-encoder-decoder": "VisionEncoderDecoderModel",
    "blip": "BlipForConditionalGeneration",
}


def transformers() -> Any:
    """Import and return the library. Raises: MissingDependency."""
    try:
        import transformers as library
    except ImportError as error:
        raise MissingDependency(
            f"this network needs the package 'transformers' ({error}): pip install transformers",
            what="transformers",
        ) from error
    library.utils.logging.disable_progress_bar()
    return library


class ClipEmbedder:
    """`Embedder` (see `.embedding`) for a CLIPModel; it embeds only images if the folder has no tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, path: Path) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.path = path
        self.size_px: int = model.config.vision_config.image_size
        self.mean, self.std = _mean_std(path)

    def images(self, pixels: Tensor) -> Tensor:
        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        vision = self.model.vision_model(pixel_values=normalise_pixels(pixels, mean, std, self.model.dtype))
        out: Tensor = self.model.visual_projection(vision.pooler_output)
        return out

    def texts(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        encoded = self.model.text_model(input_ids=input_ids, attention_mask=attention_mask)
        out: Tensor = self.model.text_projection(encoded.pooler_output)
        return out

    def tokens(self, text: str) -> Mapping[str, Array]:
        if self.tokenizer is None:
            raise InvalidWeights(
                f"{self.path.name} has no tokenizer: it embeds no texts; leave text and caption None",
                what="tokenizer",
                where=self.path,
            )
        length = self.model.config.text_config.max_position_embeddings
        ids = self.tokenizer(
            text,
            padding="max_length",
            truncation=True,
            max_length=length,
            return_tensors="np",
        )
        return {name: np.asarray(ids[name][0], np.int64) for name in ("input_ids", "attention_mask")}


def load_clip(path: Path, dtype: torch.dtype, place: str) -> ClipEmbedder:
    """Load a CLIPModel and its tokenizer. Raises: InvalidWeights; MissingDependency."""
    _check_type(path, {"clip": "CLIPModel"})
    library = transformers()
    model = _load_network(library.CLIPModel, path, dtype, place)
    return ClipEmbedder(model, _tokenizer(library, path), path)


class TransformersCaptioner:
    """`CaptionModel` (see `.caption`) for a model that conditions on `pixel_values`."""

    def __init__(self, model: Any, tokenizer: Any, path: Path) -> None:
        self.model = model
        self.tokenizer = tokenizer
        vision = getattr(model.config, "encoder", None) or model.config.vision_config
        self.size_px: int = vision.image_size
        self.mean, self.std = _mean_std(path)
        settings = model.generation_config
        if isinstance(settings.eos_token_id, list):
            ends = settings.eos_token_id
        else:
            ends = [settings.eos_token_id]
        self.ends = [end for end in ends if end is not None]

    def generate(self, pixels: Tensor, max_tokens: int) -> Mapping[str, Tensor]:
        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        written = self.model.generate(
            pixel_values=normalise_pixels(pixels, mean, std, self.model.dtype),
            # Greedy: a rerun writes the same captions.
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
        # The end token counts; what follows only fills the batch.
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


def load_captioner(path: Path, dtype: torch.dtype, place: str) -> TransformersCaptioner:
    """Load a captioning model and its tokenizer. Raises: InvalidWeights; MissingDependency."""
    kind = _check_type(path, _CAPTIONERS)
    library = transformers()
    tokenizer = _tokenizer(library, path)
    if tokenizer is None:
        raise InvalidWeights(
            f"{path.name} has no tokenizer.json, so its captions cannot be decoded",
            what="tokenizer.json",
            where=path,
        )
    return TransformersCaptioner(_load_network(getattr(library, kind), path, dtype, place), tokenizer, path)


def _check_type(path: Path, accepted: Mapping[str, str]) -> str:
    config = path / "config.json"
    if not config.is_file():
        raise InvalidWeights(
            f"{path.name} is not a folder with a config.json: give the folder that save_pretrained wrote",
            what="config.json",
            where=path,
        )
    model_type = json.loads(config.read_bytes()).get("model_type")
    if model_type not in accepted:
        raise InvalidWeights(
            f"{path.name} holds a model of type {model_type!r}; accepted: {', '.join(map(repr, accepted))}",
            what="model_type",
            where=path,
            given=model_type,
            accepted=list(accepted),
        )
    return accepted[model_type]


def _load_network(kind: Any, path: Path, dtype: torch.dtype, place: str) -> Any:
    try:
        model, info = kind.from_pretrained(
            path,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidWeights(
            f"{path.name} does not fit {kind.__name__}: {error_text(error)}",
            what=kind.__name__,
            where=path,
            given=error_text(error),
        ) from error
    missing = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if missing:  # transformers would initialise them randomly
        raise InvalidWeights(
            f"{path.name} lacks weights of {kind.__name__}: {', '.join(missing[:3])}",
            what=kind.__name__,
            where=path,
            given=missing,
        )
    return model.to(place).eval()


def _tokenizer(library: Any, path: Path) -> Any:
    if not (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        return None
    try:
        return library.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidWeights(
            f"the tokenizer in {path.name} cannot be loaded: {error}",
            what="tokenizer",
            where=path,
            given=str(error),
        ) from error


def _mean_std(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (mean, standard deviation) per channel from preprocessor_config.json, or CLIP's."""
    stated = path / "preprocessor_config.json"
    if stated.is_file():
        config = json.loads(stated.read_bytes())
    else:
        config = {}
    return tuple(config.get("image_mean", MEAN)), tuple(config.get("image_std", STD))


class TimmEmbedder:
    """`Embedder` (see `.embedding`) for images only: it returns the input of the model's classifier."""

    def __init__(self, model: Any, stated: Mapping[str, Any], path: Path) -> None:
        self.model = model
        self.path = path
        self.size_px: int = stated["input_size"][-1]
        self.mean = stated["mean"]
        self.std = stated["std"]

    def images(self, pixels: Tensor) -> Tensor:
        mean, std = (pixels.new_tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        dtype = next(self.model.parameters()).dtype
        out: Tensor = self.model(normalise_pixels(pixels, mean, std, dtype))
        return out

    def texts(self, **tokens: Tensor) -> Tensor:
        raise self._no_texts()

    def tokens(self, text: str) -> Mapping[str, np.ndarray[Any, np.dtype[Any]]]:
        raise self._no_texts()

    def _no_texts(self) -> InvalidWeights:
        return InvalidWeights(
            f"{self.path.name} is an image model: leave text and caption None", what="text", where=self.path
        )


def load_timm(path: Path, dtype: torch.dtype, place: str) -> TimmEmbedder:
    """Load an image model. Raises: InvalidWeights; MissingDependency."""
    try:
        import timm
    except ImportError as error:
        raise MissingDependency(
            f"this network needs the packages 'timm' and 'torchvision' ({error}): pip install timm",
            what="timm",
        ) from error
    from safetensors.torch import load_file

    stated = path / "config.json"
    weights = path / "model.safetensors"
    if not (stated.is_file() and weights.is_file()):
        raise InvalidWeights(
            f"{path.name} is not a folder with the config.json and model.safetensors of a timm model",
            what="config.json and model.safetensors",
            where=path,
        )
    config = json.loads(stated.read_bytes())
    try:
        model = timm.create_model(
            config["architecture"],
            pretrained=False,
            pretrained_cfg_overlay=config.get("pretrained_cfg", {}),
            # Without the classifier, whose weights the folder may still hold.
            **{**config.get("model_args", {}), "num_classes": 0},
        )
        tensors = load_file(weights)
        needed = model.state_dict()
        model.load_state_dict({name: value for name, value in tensors.items() if name in needed}, strict=True)
    except (KeyError, TypeError, RuntimeError) as error:
        raise InvalidWeights(
            f"{path.name} does not fit timm's {config.get('architecture')!r}: {error_text(error)}",
            what=config.get("architecture"),
            where=path,
            given=error_text(error),
        ) from error
    return TimmEmbedder(model.to(place, dtype).eval(), timm.data.resolve_model_data_config(model), path)


class DiffusersCoder:
    """`Coder` (see `.latent`) for an AutoencoderKL."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.block_px: int = 2 ** (len(model.config.block_out_channels) - 1)
        self.scaling_factor: float = model.config.scaling_factor
        self.shift_factor: float = getattr(model.config, "shift_factor", None) or 0.0

    def encode(self, pixels: Tensor) -> Tensor:
        half = pixels.new_full((3,), 0.5, dtype=torch.float32)
        posterior = self.model.encode(normalise_pixels(pixels, half, half, self.model.dtype)).latent_dist
        # The mode, no random draw: a rerun stores the same latents.
        out: Tensor = (posterior.mode() - self.shift_factor) * self.scaling_factor
        return out


def load_diffusers(path: Path, dtype: torch.dtype, place: str) -> DiffusersCoder:
    """Load an AutoencoderKL. Raises: InvalidWeights; MissingDependency."""
    try:
        from diffusers import AutoencoderKL
    except ImportError as error:
        raise MissingDependency(
            f"this network needs the package 'diffusers' ({error}): pip install diffusers", what="diffusers"
        ) from error
    try:
        model, info = AutoencoderKL.from_pretrained(
            path,
            torch_dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            low_cpu_mem_usage=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InvalidWeights(
            f"{path.name} does not fit AutoencoderKL: {error_text(error)}",
            what="AutoencoderKL",
            where=path,
            given=error_text(error),
        ) from error
    missing = sorted(map(str, info["missing_keys"]))
    if missing:  # diffusers would initialise them randomly
        raise InvalidWeights(
            f"{path.name} lacks weights of AutoencoderKL: {', '.join(missing[:3])}",
            what="AutoencoderKL",
            where=path,
            given=missing,
        )
    return DiffusersCoder(model.to(place).eval())
