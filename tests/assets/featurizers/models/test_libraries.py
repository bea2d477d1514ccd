"""Models of transformers and diffusers behind the same featurizers, against what those libraries give by themselves.

Small ones with random weights, saved to a folder as `save_pretrained` does; no hub is asked.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from assets.featurizers import make
from assets.testing.featurizers import in_any_batch
from loader.errors import InvalidWeights
from tests.refusals import refusal

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "a", "red", "blue", "cat", "dog", "on", "grass"]


@pytest.fixture(scope="module")
def pictures(make: Any) -> list[Mapping[str, bytes]]:
    return [{"jpg": make.jpeg(make.scene(seed, 50 + 7 * seed, 64))} for seed in range(5)]


def decode_pixels(sample: Mapping[str, bytes]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))


def tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 1), ("[EOS]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]", unk_token="[UNK]"
    )


def clip(folder: Path) -> Any:
    import torch
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(3)
    text = {name: value for name, value in VISION.items() if name not in ("image_size", "patch_size")}
    text |= {"vocab_size": len(WORDS), "max_position_embeddings": 12}
    text |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)).eval()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def blip(folder: Path) -> Any:
    import torch
    from transformers import BlipConfig, BlipForConditionalGeneration

    torch.manual_seed(4)
    text = {
        **{name: value for name, value in VISION.items() if name not in ("image_size", "patch_size")},
        "encoder_hidden_size": 32,
        "vocab_size": len(WORDS),
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
    }
    model = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=VISION)).eval()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def vision_encoder_decoder(folder: Path) -> Any:
    import torch
    from transformers import (
        GPT2Config,
        VisionEncoderDecoderConfig,
        VisionEncoderDecoderModel,
        ViTConfig,
    )

    torch.manual_seed(5)
    text = GPT2Config(
        vocab_size=len(WORDS),
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        is_decoder=True,
        add_cross_attention=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(**VISION), text)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    model = VisionEncoderDecoderModel(config=config).eval()
    model.generation_config.decoder_start_token_id = 1
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, 2
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def coder(folder: Path) -> Any:
    import torch
    from diffusers import AutoencoderKL

    torch.manual_seed(6)
    model = AutoencoderKL(
        block_out_channels=(16, 32, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=32,
        scaling_factor=0.13025,
        shift_factor=0.25,
    ).eval()
    model.save_pretrained(folder)
    return model


def test_clip(tmp_path: Path, pictures: list[Mapping[str, bytes]]) -> None:
    import torch

    model = clip(tmp_path)
    featurizer = make(
        "embedding", network="transformers", weights=str(tmp_path), caption="caption.txt", device="cpu"
    )
    in_any_batch(featurizer, "image", pictures)
    for sample in pictures:
        made = featurizer("image", {**sample, "caption.txt": b"a red cat"})
        with torch.inference_mode():
            pixels = _preprocess(sample)
            picture = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)[0]
            read = model.text_model(**tokenizer()("a red cat", return_tensors="pt"))
            words = model.text_projection(read.pooler_output)[0]
        expected = (picture / picture.norm()).numpy()
        np.testing.assert_allclose(made.fields["embedding.npy"], expected, atol=1e-6)
        cosine = float(torch.nn.functional.cosine_similarity(picture, words, dim=0))
        assert made.columns["caption_cosine"] == pytest.approx(cosine, abs=2e-6)


def _preprocess(sample: Mapping[str, bytes]) -> Any:
    """float32 [1, 3, 32, 32] by transformers' own preprocessing with Pillow."""
    from transformers.models.clip import image_processing_pil_clip as own

    processor = own.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return processor(images=[Image.fromarray(decode_pixels(sample))], return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("save", [blip, vision_encoder_decoder])
def test_captions(save: Callable[[Path], Any], tmp_path: Path, pictures: list[Mapping[str, bytes]]) -> None:
    import torch

    model = save(tmp_path)
    featurizer = make("caption", network="transformers", weights=str(tmp_path), device="cpu", max_tokens=12)
    in_any_batch(featurizer, "image", pictures)
    for sample in pictures:
        made = featurizer("image", sample)
        with torch.inference_mode():
            ids = model.generate(
                pixel_values=_preprocess(sample), do_sample=False, num_beams=1, max_new_tokens=12
            )
        assert made.fields["generated.txt"] == tokenizer().decode(ids[0], skip_special_tokens=True)
        assert 1 <= made.columns["generated_tokens"] <= 12  # type: ignore[operator]
        assert made.columns["generated_logprob"] < 0  # type: ignore[operator]


def test_latents(tmp_path: Path, pictures: list[Mapping[str, bytes]]) -> None:
    import torch

    model = coder(tmp_path)
    featurizer = make(
        "latent", network="diffusers", weights=str(tmp_path), size_px=0, stored="float32", device="cpu"
    )
    in_any_batch(featurizer, "image", pictures)
    for sample in pictures:
        pixels = decode_pixels(sample)
        height = pixels.shape[0] // 8 * 8
        top = (pixels.shape[0] - height) // 2
        scaled = torch.from_numpy(pixels[top : top + height].copy()).permute(2, 0, 1)[None] / 127.5 - 1
        with torch.inference_mode():
            expected = (model.encode(scaled).latent_dist.mode()[0] - 0.25) * 0.13025
        made = featurizer("image", sample)
        assert made.fields["latent.npy"].shape == (4, height // 8, 8)
        np.testing.assert_allclose(made.fields["latent.npy"], expected.numpy(), atol=1e-5)


def test_what_does_not_fit_is_refused(tmp_path: Path, pictures: list[Mapping[str, bytes]]) -> None:
    from safetensors.torch import load_file, save_file

    clip(tmp_path)
    accepted = ["vision-encoder-decoder", "blip"]
    with refusal(InvalidWeights, what="model_type", where=tmp_path, given="clip", accepted=accepted):
        make("caption", network="transformers", weights=str(tmp_path), device="cpu")("image", pictures[0])
    with refusal(InvalidWeights, what="AutoencoderKL", where=tmp_path):
        make("latent", network="diffusers", weights=str(tmp_path), device="cpu")("image", pictures[0])
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("visual_projection.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with refusal(InvalidWeights, what="CLIPModel", where=tmp_path, given=["visual_projection.weight"]):
        make("embedding", network="transformers", weights=str(tmp_path), device="cpu")("image", pictures[0])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    clip(tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "again" / name).unlink()
    with refusal(InvalidWeights, what="tokenizer", where=tmp_path / "again"):
        make("embedding", network="transformers", weights=str(tmp_path / "again"), text="txt", device="cpu")(
            "text", {"txt": b"a cat"}
        )


def test_network_of_the_examples(
    tmp_path: Path, pictures: list[Mapping[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import Dinov2Config, Dinov2Model

    source = Path(__file__).parents[4] / "examples" / "my_package" / "dino.py"
    (tmp_path / "shown_dino.py").write_text(source.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(8)
    config = Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=224, patch_size=14
    )
    Dinov2Model(config).save_pretrained(tmp_path / "dino")
    featurizer = make("embedding", network="shown_dino:load", weights=str(tmp_path / "dino"), device="cpu")
    in_any_batch(featurizer, "image", pictures[:3])
    made = featurizer("image", pictures[0]).fields["embedding.npy"]
    assert made.shape == (32,)
    assert np.linalg.norm(made) == pytest.approx(1)
