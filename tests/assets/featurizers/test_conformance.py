"""Every featurizer of the registry keeps to the conformance suite."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from assets.featurizers import FEATURIZERS, Features, Featurizer, make, version_of
from assets.featurizers.models import MODELS
from assets.testing.featurizers import FeaturizerConformance, ModelConformance, Samples, same
from loader.errors import InvalidField, InvalidSpec
from tests.refusals import refusal

PAGE = (Path(__file__).parents[3] / "docs/pipeline.md").read_text()

Models = Mapping[str, Mapping[str, Any]]
ROOT = "memory://protected-by-overlap"
PARAMETERS: Models = {"overlap": {"root": ROOT, "protected": ["exam@1"]}}
"""Name of a featurizer -> what it needs."""


def write_exam(root: loader.Root) -> None:
    with root.write("exam") as writer:
        writer.add("q", {"txt": "a question of nine words, as it is here"})


@pytest.fixture(scope="module", autouse=True)
def _exam_set() -> None:
    write_exam(loader.Root(ROOT))


class TestFeaturizers(FeaturizerConformance):
    @pytest.fixture(params=FEATURIZERS, scope="class")
    @classmethod
    def featurizer(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Featurizer:
        parameters = dict(PARAMETERS.get(request.param, {}))
        if parameters:  # worker processes read it, too
            root = loader.Root(tmp_path_factory.mktemp("protected"))
            write_exam(root)
            parameters["root"] = root.url
        return make(request.param, **parameters)


class TestModels(ModelConformance):
    @pytest.fixture(params=MODELS, scope="class")
    @classmethod
    def featurizer(cls, request: pytest.FixtureRequest, models: Models) -> Featurizer:
        return make(request.param, **models[request.param])


def test_another_field_is_read_when_told(samples: Samples) -> None:
    for name in FEATURIZERS:
        parameters = PARAMETERS.get(name, {})
        plain = make(name, **parameters)
        for kind in plain.kinds:
            field, *more = plain.inputs[kind]
            renamed = make(name, **{**parameters, kind: f"other.{field}"})
            assert renamed.inputs[kind] == (f"other.{field}", *more)
            assert renamed.version != plain.version
            data = samples[kind][0][field]
            assert same(plain(kind, {field: data}), renamed(kind, {f"other.{field}": data}))
            assert make(name, **{**parameters, kind: None}).kinds == plain.kinds - {kind}


@pytest.mark.parametrize(
    ("registry", "folders", "not_one"),
    [
        (
            FEATURIZERS,
            (".", "texts"),
            {
                "featurizer",
                "decoding",
                "bounded_file",
                "tekken",
                "tokenizer_file",
                "chat",
                "chat_template",
                "template_sandbox",
                "shingles",
            },
        ),
        (
            MODELS,
            ("models",),
            {"model", "batching", "devices", "weights", "networks"},
        ),
    ],
)
def test_registry_names_what_is_there(
    registry: Mapping[str, str], folders: tuple[str, ...], not_one: set[str], models: Models
) -> None:
    here = Path(make.__code__.co_filename).parent
    files = {path.stem for folder in folders for path in (here / folder).glob("*.py")}
    files -= {"__init__", *not_one}
    assert {target.split(":")[0].rpartition(".")[2] for target in registry.values()} == files
    for name in registry:
        assert make(name, **{**PARAMETERS, **models}.get(name, {})).name == name
        assert re.search(rf"^- `{name}` \(", PAGE, re.M), f"{name} is not in a list of docs/pipeline.md"


def test_unknown_names_and_parameters_are_refused() -> None:
    with refusal(InvalidSpec, what="featurizer", given="smell"):
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
    assert {name: make(name, **PARAMETERS.get(name, {})).version for name in FEATURIZERS} == {
        "picture": "1-1accb6d8",
        "loudness": "2-602409a8",
        "mel": "1-2830b829",
        "phash": "2-1accb6d8",
        "minhash": "1-b76001aa",
        "overlap": "1-d856f9b6",
        "appearance": "1-1accb6d8",
        "tokens": "2-bd8196ac",
        "vad": "1-ac5e951a",
        "episode_sync": "2-e353de4e",
    }
    weights = {"weights": "/nowhere/x.safetensors", "sha256": "ab", "device": "cpu"}
    networks = {"embedding": "timm", "latent": "diffusers", "caption": "transformers"}
    assert {name: make(name, network=networks[name], **weights).version for name in MODELS} == {
        "embedding": "1-2cc61c98",
        "latent": "1-f3dd538b",
        "caption": "1-a9220950",
    }


def test_facts_are_those_of_stored_features() -> None:
    """A fact of a field never changes: another one here needs another `code`, or publishes are refused."""
    shared = {"weights": "/nowhere/x.safetensors", "sha256": "ab", "device": "cpu"}
    networks = {"embedding": "timm", "latent": "diffusers", "caption": "transformers"}
    made = [make(name, **PARAMETERS.get(name, {})) for name in FEATURIZERS]
    made += [make(name, network=networks[name], **shared) for name in MODELS]
    assert {one.name: dict(one.facts) for one in made} == {
        "picture": {},
        "loudness": {},
        "mel": {
            "mel.npy": {
                "dims": ["band", "frame"],
                "unit": "(log10 of power + 4) / 4",
                "sample_rate_hz": 16_000,
                "hop_samples": 160,
            }
        },
        "phash": {"phash.npy": {"dims": ["frame"], "unit": "64-bit hash"}},
        "minhash": {"minhash.npy": {"dims": ["hash"], "unit": "32-bit minhash", "shingle_words": 5}},
        "overlap": {},
        "appearance": {"appearance.npy": {"dims": ["component"]}},
        "episode_sync": {"keep.npy": {"dims": ["row"], "unit": "False at idle rows"}},
        "tokens": {
            "tokens.npy": {
                "tokenizer": "tekken_240718.json",
                "tokenizer_sha256": "eccd1665d2e477697c33cb7f0daa6f6dfefc57a0a6bceb66d4be52952f827516",
                "vocabulary": 131_072,
                "dims": ["token"],
                "text_fields": ["txt"],
            }
        },
        "vad": {
            "vad.npy": {
                "dims": ["segment", "first sample and the one behind the last"],
                "unit": "sample",
                "sample_rate_hz": 16_000,
            }
        },
        "embedding": {"embedding.npy": {"weights_sha256": "ab", "dims": ["component"]}},
        "latent": {"latent.npy": {"weights_sha256": "ab"}},
        "caption": {"generated.txt": {"weights_sha256": "ab"}},
    }
    photos = make("latent", network="diffusers", video=None, **shared)
    assert photos.facts["latent.npy"]["dims"] == ["channel", "row", "column"]


def test_features_hold_plain_values() -> None:
    with pytest.raises(TypeError, match=r"column 'x' is np\.float64"):
        Features(fields={}, columns={"x": np.float64(1)})  # type: ignore[dict-item]
    with refusal(InvalidSpec, what="x", given=float("nan")):
        Features(fields={}, columns={"x": float("nan")})
    with pytest.raises(InvalidField):
        Features(fields={"x.pkl": b""}, columns={})
