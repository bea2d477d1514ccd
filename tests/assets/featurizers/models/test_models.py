"""The three model featurizers: what they make, and that it is the same in any company."""

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

import loader
from assets.features.compute import SampleRange, compute_part, featurizer_gpus, model_here
from assets.featurizers import Features
from assets.featurizers import make as featurizer
from assets.featurizers.decoding import spread, whole_blocks
from assets.featurizers.models import MODELS, ModelFeaturizer, crop_centre
from assets.featurizers.models.batching import gather_features
from assets.featurizers.models.model import pin_featurizer
from assets.media.unit import Unusable
from loader.errors import InvalidSpec, InvalidWeights
from loader.modalities import encode
from penstock.compute.pool import LocalCompute
from tests.refusals import refusal

Models = Mapping[str, Mapping[str, Any]]
Samples = Mapping[str, list[Mapping[str, bytes]]]
Sample = Mapping[str, bytes]


def model(models: Models, name: str, **parameters: Any) -> ModelFeaturizer:
    made = featurizer(name, **{**models[name], **parameters})
    assert isinstance(made, ModelFeaturizer)
    return made


@pytest.fixture(scope="module")
def pictures(make: Any) -> list[Sample]:
    """Of several sizes, each more than once."""
    sizes = [(40, 56), (64, 64), (40, 56), (90, 33), (64, 64), (40, 56), (41, 56), (64, 64), (40, 56)]
    return [{"jpg": make.jpeg(make.scene(seed, *size))} for seed, size in enumerate(sizes)]


def comparable_result(made: Features | Unusable) -> object:
    if isinstance(made, Unusable):
        return made.code, made.reason
    return {name: bytes(encode(name, value)) for name, value in made.fields.items()}, dict(made.columns)


ON_A_GPU = [
    {"device": "cuda"},
    {"device": "cuda", "dtype": "bfloat16", "batch_size": 2},
    {"device": "cuda:0", "dtype": "float16"},
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "how",
    [
        *(pytest.param(how, marks=pytest.mark.gpu) for how in ON_A_GPU),
        {},
        {"batch_size": 3, "dtype": "bfloat16"},
        {"batch_size": 2, "max_batch_size": 8, "readers": 3},
    ],
    ids=str,
)
def test_sample_gets_the_same_in_any_company(
    models: Models, name: str, how: Mapping[str, Any], pictures: list[Sample]
) -> None:
    one = model(models, name, **how)
    alone = [comparable_result(one("image", sample)) for sample in pictures]
    assert len({repr(made) for made in alone}) > 1
    assert [comparable_result(made) for made in one.features("image", pictures)] == alone
    assert [comparable_result(made) for made in one.features("image", pictures[::-1])][::-1] == alone
    some = [pictures[place] for place in (7, 7, 2, 0, 7)]
    assert [comparable_result(made) for made in one.features("image", some)] == [
        alone[place] for place in (7, 7, 2, 0, 7)
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_workers_on_a_gpu_make_the_bits_of_each_sample_by_itself(
    models: Models, name: str, dtype: str, pictures: list[Sample], tmp_path: Path
) -> None:
    """In batches that may grow: most of the 80 samples are of one size. The device is the workers' to find."""
    import torch

    auto, stated = (
        pin_featurizer(model(models, name, device=device, dtype=dtype)) for device in ("auto", "cuda:0")
    )
    assert (auto.batch_size, stated.batch_size) == (0, 8)
    assert featurizer_gpus(auto)[:1] == featurizer_gpus(stated) != ()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    few = [comparable_result(stated("image", sample)) for sample in pictures]
    assert torch.cuda.max_memory_allocated() > before, "nothing was computed on it"
    with loader.Root(tmp_path / "root") as root:
        root.create()
        samples = [(f"{n:03d}", pictures[(0 if n % 8 else n) % len(pictures)]) for n in range(80)]
        part = loader.write_part(root, root.begin("photos"), samples)
        wanted = {key: few[pictures.index(sample)] for key, sample in samples}
        whole = SampleRange(store=root.store, part=part, kind="image", featurizer=auto, stop=part.n_rows)
        compute = LocalCompute(workers=2)
        try:
            assert model_here(compute, auto, 600) == {
                "device": "cuda",
                "batch_size": 8,
                "torch": str(torch.__version__),
                "processor": torch.cuda.get_device_name(0),
            }
            rows = list(compute_part(compute, whole, 600))
        finally:
            compute.close()
    assert {row.key: row.features and comparable_result(row.features) for row in rows} == wanted


def test_bad_sample_costs_only_itself(models: Models, pictures: list[Sample]) -> None:
    one = model(models, "latent", batch_size=4)
    bad: list[Sample] = [{"jpg": b"\xff\xd8no"}, {}, {"jpg": pictures[0]["jpg"][:300]}]
    mixed = [pictures[0], bad[0], pictures[2], bad[1], pictures[5], bad[2]]
    made = one.features("image", mixed)
    assert [comparable_result(made[place]) for place in (0, 2, 4)] == [
        comparable_result(one("image", pictures[place])) for place in (0, 2, 5)
    ]
    assert [one.code for one in made if isinstance(one, Unusable)] == [
        "undecodable",
        "missing_field",
        "undecodable",
    ]


def test_result_that_is_not_finite_is_refused(models: Models, pictures: list[Sample], tmp_path: Path) -> None:
    """float16 ends at 65,504: a model with large weights overflows on some pictures."""
    from tests_networks.modules import read_weights, save_weights

    config, tensors = read_weights(Path(models["latent"]["weights"]))
    tensors["moments.bias"] = tensors["moments.bias"] + 70_000
    save_weights(tmp_path / "large.safetensors", config, tensors)
    parameters = {"weights": str(tmp_path / "large.safetensors"), "batch_size": 2}
    (refused,) = model(models, "latent", dtype="float16", **parameters).features("image", pictures[:1])
    assert isinstance(refused, Unusable)
    assert (refused.code, refused.reason) == ("not_finite", "the model's 'latent' of it is NaN or infinite")
    config["scaling_factor"] = 1.0
    save_weights(tmp_path / "large.safetensors", config, tensors)
    (refused,) = model(models, "latent", **parameters).features("image", pictures[:1])
    assert isinstance(refused, Unusable)
    assert refused.code == "overflow"
    assert isinstance(model(models, "latent", stored="float32", **parameters)("image", pictures[0]), Features)


def test_little_waits_for_its_like(
    models: Models, pictures: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no room to wait rows are computed as they come: more filled up batches, the same features."""
    one = model(models, "latent", batch_size=4)
    expected = [comparable_result(made) for made in one.features("image", pictures)]
    monkeypatch.setitem(gather_features.__globals__, "WAITING_BYTES", 0)
    assert [comparable_result(made) for made in one.features("image", pictures)] == expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Words(ModelFeaturizer):
    """Field words.npy: a number for each word of a text; words of one length share batches."""

    name: ClassVar[str] = "words"
    inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("txt",)}
    outputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("words.npy",)}
    columns: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ()}

    def load(self, path: Path, dtype: Any, place: str) -> Any:
        return None

    def prepare(self, model: Any, kind: str, sample: Sample) -> list[Any]:
        return [{"word": np.frombuffer(word, np.uint8)} for word in sample["txt"].split()]

    def run(self, model: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"first": batch["word"][:, 0], "n": batch["word"].sum(dim=1)}

    def finish(self, model: Any, kind: str, rows: Sequence[Any]) -> Features:
        values = [(int(row["first"]), int(row["n"])) for row in rows]
        return Features(fields={"words.npy": np.array(values, np.int64).reshape(-1, 2)}, columns={})


def test_results_come_back_in_the_order_of_their_rows(models: Models) -> None:
    texts = [b"to be or not to be", b"", b"that is the question", b"or", b"be not"]
    for batch_size in (1, 3):
        one = Words(weights=models["caption"]["weights"], batch_size=batch_size, device="cpu")
        for text, made in zip(texts, one.features("text", [{"txt": text} for text in texts]), strict=True):
            assert isinstance(made, Features)
            assert made.fields["words.npy"].tolist() == [[word[0], sum(word)] for word in text.split()]


def test_versions_follow_the_inputs_of_the_features(models: Models, tmp_path: Path) -> None:
    one = model(models, "embedding")
    other: Mapping[str, Any] = {
        "dtype": "bfloat16",
        "batch_size": 2,
        "device": "cuda",
        "stored": "float16",
        "image": "png",
        "field": "clip.npy",
        "name": "clip",
        "caption": "caption.txt",
    }
    versions = {replace(one, **{name: value}).version for name, value in other.items()}
    assert len({one.version, *versions}) == len(other) + 1
    weights = Path(one.weights)
    (tmp_path / "moved.safetensors").write_bytes(weights.read_bytes())
    same: Mapping[str, Any] = {
        "weights": str(tmp_path / "moved.safetensors"),
        "max_batch_size": 64,
        "memory_bytes": 1 << 20,
        "readers": 2,
        "sha256": pin_featurizer(one).sha256,
    }
    assert {replace(one, **{name: value}).version for name, value in same.items()} == {one.version}
    assert replace(one, device="cuda:1").version == replace(one, device="cuda").version
    assert {item.name for item in fields(one)} == {*other, *same, "network", "video", "text"}
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "moved.safetensors").write_bytes(changed)
    assert replace(one, weights=str(tmp_path / "moved.safetensors")).version != one.version


def test_version_is_declared_without_reading_anything(models: Models) -> None:
    one = model(models, "embedding")
    nowhere = replace(one, weights="/nowhere/x.safetensors")
    assert nowhere.declared_version == one.declared_version != one.version
    stated = replace(nowhere, sha256=pin_featurizer(one).sha256)
    assert stated.version == stated.declared_version == one.version
    with refusal(InvalidWeights, what="weights", where="/nowhere/x.safetensors"):
        pin_featurizer(nowhere)
    assert pin_featurizer(stated) is stated


def test_other_weights_under_the_same_name_are_loaded_anew(
    models: Models, pictures: list[Sample], tmp_path: Path
) -> None:
    from tests_networks import two_towers

    path = tmp_path / "x.safetensors"
    made = []
    for seed in (1, 2):
        two_towers.save_small(path, seed)
        one = model(models, "embedding", weights=str(path))
        made.append((one.version, comparable_result(one("image", pictures[0]))))
    assert made[0][0] != made[1][0]
    assert made[0][1] != made[1][1]
    with refusal(InvalidWeights, what="sha256", where=path):
        model(models, "embedding", weights=str(path), sha256="00ff")("image", pictures[0])


@pytest.mark.parametrize(
    ("name", "parameters", "fault"),
    [
        ("embedding", {"dtype": "float64"}, {"what": "dtype", "given": "float64"}),
        ("embedding", {"batch_size": -1}, {"what": "batch_size", "given": -1}),
        (
            "embedding",
            {"network": "resnet"},
            {"what": "network", "given": "resnet"},
        ),
        ("embedding", {"stored": "int8"}, {"what": "stored", "given": "int8"}),
        ("latent", {"size_px": -8}, {"what": "size_px, max_px and frames", "given": (-8, 4194304, 8)}),
        ("latent", {"stored": "bfloat16"}, {"what": "stored", "given": "bfloat16"}),
        ("caption", {"max_tokens": 0}, {"what": "max_tokens", "given": 0}),
        ("caption", {"field": "caption.json"}, {"what": "field", "given": "caption.json"}),
    ],
)
def test_parameters_that_it_does_not_take(
    models: Models, name: str, parameters: Mapping[str, Any], fault: dict[str, object]
) -> None:
    with refusal(InvalidSpec, **fault):
        model(models, name, **parameters)


def test_size_that_is_no_multiple_of_the_network_s_block(models: Models, pictures: list[Sample]) -> None:
    with refusal(InvalidSpec, what="size_px", given=100):
        model(models, "latent", size_px=100)("image", pictures[0])


def test_embeddings_have_length_one_and_meet_in_one_space(models: Models, samples: Samples) -> None:
    one = model(models, "embedding", caption="caption.txt", stored="float16")
    for kind in ("image", "video", "text"):
        for sample in samples[kind]:
            made = one(kind, sample)
            vector = made.fields["embedding.npy"]
            assert (vector.dtype, vector.shape) == (np.float16, (16,))
            assert np.linalg.norm(vector.astype(np.float64)) == pytest.approx(1, abs=2e-3)
            assert dict(made.columns) == ({} if kind == "text" else {"caption_cosine": None})
    words = b"a horse on a hill"
    exact = replace(one, stored="float32")
    pictured = exact("image", {**samples["image"][0], "caption.txt": words})
    written = exact("text", {"txt": words}).fields["embedding.npy"]
    cosine = float(pictured.fields["embedding.npy"] @ written)
    assert pictured.columns["caption_cosine"] == pytest.approx(cosine, abs=2e-6)
    assert comparable_result(exact("text", {"txt": words})) != comparable_result(
        exact("text", {"txt": words + b"s"})
    )


def test_clip_is_the_sum_of_its_three_frames(models: Models, make: Any) -> None:
    from assets.featurizers.decoding import frames

    one = model(models, "embedding")
    clip = {"mp4": make.mp4([make.scene(5, shift=6 * number) for number in range(9)])}
    parts = []
    for frame in frames(clip, "mp4", lambda n: [0, n // 2, n - 1]):
        sink = io.BytesIO()
        Image.fromarray(frame).save(sink, "PNG")
        parts.append(replace(one, image="png")("image", {"png": sink.getvalue()}).fields["embedding.npy"])
    total = np.sum(parts, axis=0)
    np.testing.assert_allclose(
        one("video", clip).fields["embedding.npy"], total / np.linalg.norm(total), atol=1e-6
    )


def test_latents_of_photos_and_clips(models: Models, make: Any) -> None:
    native = model(models, "latent", frames=4)
    photo = {"jpg": make.jpeg(make.scene(1, 61, 47))}
    assert native("image", photo).fields["latent.npy"].shape == (4, 7, 5)
    assert native("image", photo).fields["latent.npy"].dtype == np.float16
    square = replace(native, size_px=32)
    assert square("image", photo).fields["latent.npy"].shape == (4, 4, 4)
    clip = {"mp4": make.mp4([make.scene(5, 48, 64, shift=6 * number) for number in range(9)])}
    latents = native("video", clip)
    assert latents.fields["latent.npy"].shape == (4, 4, 6, 8)
    assert latents.columns["latent_std"] == pytest.approx(
        float(latents.fields["latent.npy"].astype(np.float64).std()), rel=2e-3
    )
    short = {"mp4": make.mp4([make.scene(5, 48, 64)])}
    assert native("video", short).fields["latent.npy"].shape == (1, 4, 6, 8)
    for pixels, code in ((make.scene(1, 6, 90), "too_small"), (make.scene(1, 90, 90), "too_large")):
        with pytest.raises(Unusable) as refused:
            replace(native, max_px=8_000)("image", {"jpg": make.jpeg(pixels)})
        assert refused.value.code == code


def test_captions_are_words_of_the_tokenizer(models: Models, samples: Samples) -> None:
    from tests_networks.captioner import WORDS

    one = model(models, "caption", max_tokens=9)
    for kind in ("image", "video"):
        for sample in samples[kind]:
            made = one(kind, sample)
            words = made.fields["generated.txt"].replace(".", " ").split()
            assert set(words) <= set(WORDS)
            assert 1 <= made.columns["generated_tokens"] <= 9  # type: ignore[operator]
            assert made.columns["generated_logprob"] < 0  # type: ignore[operator]


def test_caption_that_ends_is_counted_to_its_end(models: Models, samples: Samples, tmp_path: Path) -> None:
    from tests_networks.captioner import LAST
    from tests_networks.modules import read_weights, save_weights

    config, tensors = read_weights(Path(models["caption"]["weights"]))
    tensors["out.bias"][LAST] = 100.0
    save_weights(tmp_path / "short.safetensors", config, tensors)
    made = model(models, "caption", weights=str(tmp_path / "short.safetensors"))("image", samples["image"][0])
    assert made.fields["generated.txt"] == ""
    assert made.columns["generated_tokens"] == 1


def test_pictures_are_cut_around_their_centre() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (37, 53, 3), np.uint8)
    assert np.array_equal(crop_centre(pixels[:32, :32], 32), pixels[:32, :32])
    assert np.array_equal(crop_centre(pixels[:32], 32), pixels[:32, 10:42])
    assert np.array_equal(whole_blocks(pixels, 8), pixels[2:34, 2:50])
    assert crop_centre(pixels, 64).shape == (64, 64, 3)
    strip = np.zeros((1, 40_000, 3), np.uint8)
    assert crop_centre(strip, 224).shape == (224, 224, 3)
    assert crop_centre(strip.transpose(1, 0, 2), 224).shape == (224, 224, 3)


def test_frames_are_spread_from_the_first_to_the_last() -> None:
    assert spread(9, 4) == [0, 3, 5, 8]
    assert spread(3, 8) == [0, 1, 2]
    assert spread(1, 4) == [0]
    assert spread(100, 1) == [0]


def test_instance_holds_no_model(models: Models, pictures: list[Sample]) -> None:
    one = model(models, "embedding")
    before = pickle.dumps(one)
    one("image", pictures[0])
    assert pickle.dumps(one) == before
    assert len(before) < 1000
