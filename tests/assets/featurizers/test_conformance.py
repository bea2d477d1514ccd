"""What every featurizer of the registry keeps to, and those that docs/extending.md shows."""

import multiprocessing
import operator
import pickle
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assets.featurizers import FEATURIZERS, Features, Featurizer, make, version_of
from assets.featurizers.models import MODELS
from assets.media.unit import Unusable
from loader.errors import InvalidField
from loader.modalities import decoder_for, encode

DOC = (Path(__file__).parents[3] / "docs/extending.md").read_text()
SECTIONS = {title: DOC.split(f"\n## {title}\n")[1].split("\n## ")[0] for title in ("A featurizer", "A model")}
SHOWN = {"mean_colour": "MeanColour", "liking": "Liking"}
SOURCES = dict(
    zip(SHOWN, re.findall(r"```python(?: model)?\n(.*?)```", "".join(SECTIONS.values()), re.S), strict=True)
)

KINDS = {"image", "video", "audio", "text"}
Samples = Mapping[str, list[Mapping[str, bytes]]]
Models = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The page's files, importable."""
    folder = tmp_path_factory.mktemp("shown")
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


def made(name: str, models: Models, folder: Path) -> Featurizer:
    if name in SHOWN:
        parameters = {}
        if name == "liking":
            shown = import_module(name)
            shown.save(folder / "liking.safetensors", seed=3)
            parameters = {"weights": str(folder / "liking.safetensors"), "device": "cpu"}
        return make(f"{name}:{SHOWN[name]}", **parameters)
    return make(name, **models.get(name, {}))


@pytest.fixture(params=[*FEATURIZERS, *MODELS, *SHOWN], scope="module")
def featurizer(request: pytest.FixtureRequest, folder: Path, models: Models) -> Featurizer:
    return made(request.param, models, folder)


def same(one: Features, other: Features) -> bool:
    """Bit for bit, fields as they would be stored."""
    stored = [{name: bytes(encode(name, value)) for name, value in f.fields.items()} for f in (one, other)]
    return stored[0] == stored[1] and dict(one.columns) == dict(other.columns)


def pickled(featurizer: Featurizer) -> Featurizer:
    copy: Featurizer = pickle.loads(pickle.dumps(featurizer))  # noqa: S301 - our own bytes
    return copy


def test_it_says_what_it_is(featurizer: Featurizer) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", featurizer.name)
    assert re.fullmatch(r"[0-9]+-[0-9a-f]{8}", featurizer.version)
    assert featurizer.version == pickled(featurizer).version
    assert featurizer.kinds
    assert featurizer.kinds <= KINDS
    for declared in (featurizer.inputs, featurizer.outputs, featurizer.columns):
        assert set(declared) == featurizer.kinds
    for fields in featurizer.inputs.values():
        assert fields
        assert all(decoder_for(field) for field in fields)


def test_all_samples_of_a_kind_get_the_same_names(featurizer: Featurizer, samples: Samples) -> None:
    for kind in featurizer.kinds:
        made = [featurizer(kind, sample) for sample in samples[kind]]
        shapes = {(tuple(sorted(f.fields)), tuple(sorted(f.columns))) for f in made}
        assert len(shapes) == 1
        (shape,) = shapes
        assert any(shape)
        assert shape == (tuple(sorted(featurizer.outputs[kind])), tuple(sorted(featurizer.columns[kind])))
        for features in made:
            for name, value in features.fields.items():
                back = decoder_for(name)(encode(name, value), None)
                np.testing.assert_array_equal(back, value)


def test_the_same_bytes_give_the_same_features(featurizer: Featurizer, samples: Samples) -> None:
    copy = pickled(featurizer)
    for kind in featurizer.kinds:
        for sample in samples[kind]:
            first = featurizer(kind, sample)
            assert same(first, featurizer(kind, sample))
            assert same(first, copy(kind, {name: bytes(bytearray(data)) for name, data in sample.items()}))


def test_another_field_is_read_when_told(samples: Samples) -> None:
    for name in FEATURIZERS:
        for kind in make(name).kinds:
            ((field,),) = [make(name).inputs[kind]]
            renamed = make(name, **{kind: f"other.{field}"})
            assert renamed.inputs[kind] == (f"other.{field}",)
            assert renamed.version != make(name).version
            sample = samples[kind][0]
            assert same(make(name)(kind, sample), renamed(kind, {f"other.{field}": sample[field]}))
            assert make(name, **{kind: None}).kinds == make(name).kinds - {kind}


def test_a_kind_that_is_not_its_own_is_a_mistake(featurizer: Featurizer) -> None:
    with pytest.raises(ValueError, match="a sample of kind 'smell'; accepted: "):
        featurizer("smell", {})


def refusal(featurizer: Featurizer, kind: str, sample: Mapping[str, bytes]) -> Unusable:
    with pytest.raises(Unusable) as refused:
        featurizer(kind, sample)
    assert (refused.value.outcome, refused.value.stage) == ("rejected", "featurize")
    assert re.fullmatch(r"[a-z_]+", refused.value.code)
    assert refused.value.reason
    return refused.value


def test_missing_and_empty_inputs_are_rejected(featurizer: Featurizer) -> None:
    for kind, (field, *_) in featurizer.inputs.items():
        assert refusal(featurizer, kind, {}).code == "missing_field"
        assert refusal(featurizer, kind, {field: b""}).code == "empty"


RUBBISH = [
    b"\x00",
    b"\xff\xd8\xff",
    b"\xff\xfe" * 40,
    bytes(range(256)) * 8,
    b"\x00\x00\x00\x18ftypisom" + bytes(2000),
    b"fLaC" + bytes(100),
    b"RIFF\xff\xff\xff\xffWAVE\x80\x81",
]


def test_rubbish_is_rejected(featurizer: Featurizer) -> None:
    for kind, (field, *_) in featurizer.inputs.items():
        for data in RUBBISH:
            if kind != "text" or not data.isascii():  # zero bytes are letters of UTF-8
                refusal(featurizer, kind, {field: data})


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """100 truncations, from nothing to all but the last byte, and 100 copies with a few bytes changed."""
    for share in range(100):
        yield data[: (len(data) - 1) * share // 99]
    rng = np.random.default_rng(seed)
    for _ in range(100):
        copy = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 6)):
            copy[place] = rng.integers(256)
        yield bytes(copy)


def features_or_refusal(
    featurizer: Featurizer, kind: str, sample: Mapping[str, bytes]
) -> Features | Unusable:
    try:
        return featurizer(kind, sample)
    except Unusable as refused:
        return refused


def test_damaged_bytes_are_rejected_or_featurized_but_never_anything_else(
    featurizer: Featurizer, samples: Samples
) -> None:
    for kind, (field, *_) in featurizer.inputs.items():
        sample = samples[kind][0]
        whole = featurizer(kind, sample)
        n_refused = 0
        for data in damaged(sample[field], seed=len(kind)):
            features = features_or_refusal(featurizer, kind, {**sample, field: data})
            if isinstance(features, Unusable):
                n_refused += 1
                assert (features.outcome, features.stage) == ("rejected", "featurize")
            else:
                assert features.columns.keys() == whole.columns.keys()
                assert features.fields.keys() == whole.fields.keys()
        assert n_refused >= (1 if kind == "text" else 90)  # every truncation of media


def test_a_spawned_process_makes_the_same(samples: Samples, folder: Path, models: Models) -> None:
    context = multiprocessing.get_context("spawn")
    every = [made(name, models, folder) for name in [*FEATURIZERS, *MODELS, *SHOWN]]
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        for featurizer in every:
            for kind in featurizer.kinds:
                there = pool.submit(operator.call, featurizer, kind, samples[kind][0])
                assert same(there.result(), featurizer(kind, samples[kind][0]))
                bad = pool.submit(operator.call, featurizer, kind, {})
                assert isinstance(bad.exception(), Unusable)


@pytest.mark.parametrize(
    ("registry", "folder", "not_one", "title"),
    [
        (FEATURIZERS, "", {"featurizer", "decoding", "clashes"}, "A featurizer"),
        (
            MODELS,
            "models",
            {"model", "batching", "gathering", "devices", "weights", "pictures"},
            "A model",
        ),
    ],
)
def test_the_registry_names_what_is_there(
    registry: Mapping[str, str], folder: str, not_one: set[str], title: str, models: Models
) -> None:
    here = Path(make.__code__.co_filename).parent / folder
    files = {path.stem for path in here.glob("*.py")} - {"__init__"} - not_one
    assert {target.split(":")[0].rpartition(".")[2] for target in registry.values()} == files
    for name in registry:
        assert make(name, **models.get(name, {})).name == name
        assert re.search(rf"^\| {name} \|", SECTIONS[title], re.M), (
            f"{name} is not in the table of docs/extending.md"
        )


def test_unknown_names_and_parameters_are_refused() -> None:
    with pytest.raises(
        ValueError, match="no featurizer 'smell'; there are caption, embedding, latent, loudness, "
    ):
        make("smell")
    with pytest.raises(TypeError, match="strength"):
        make("picture", strength=3)


def test_versions_follow_code_parameters_and_weights() -> None:
    versions = [
        version_of(1, {"a": 1}),
        version_of(2, {"a": 1}),
        version_of(1, {"a": 2}),
        version_of(1, {"a": 1}, "00ff"),
    ]
    assert len(set(versions)) == 4
    assert version_of(1, {"a": 1, "b": 2}) == version_of(1, {"b": 2, "a": 1})


def test_versions_are_those_of_stored_features() -> None:
    """Another version here, without another result, has every user compute everything again."""
    assert {name: make(name).version for name in FEATURIZERS} == {
        "picture": "1-1accb6d8",
        "loudness": "2-602409a8",
        "mel": "1-2830b829",
        "phash": "2-1accb6d8",
        "tokens": "2-bd8196ac",
        "vad": "1-ac5e951a",
    }
    weights = {"weights": "/nowhere/x.safetensors", "sha256": "ab", "device": "cpu"}
    networks = {"embedding": "timm", "latent": "diffusers", "caption": "transformers"}
    assert {name: make(name, network=networks[name], **weights).version for name in MODELS} == {
        "embedding": "1-2cc61c98",
        "latent": "1-f3dd538b",
        "caption": "1-a9220950",
    }


def test_features_hold_plain_values() -> None:
    with pytest.raises(TypeError, match=r"column 'x' is np\.float64"):
        Features(fields={}, columns={"x": np.float64(1)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="column 'x' is nan"):
        Features(fields={}, columns={"x": float("nan")})
    with pytest.raises(InvalidField):
        Features(fields={"x.pkl": b""}, columns={})
