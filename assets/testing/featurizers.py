"""Conformance suites for featurizers, with or without a model.

Subclass one in a test module, `ModelConformance` for a model:

    class TestMeanColour(FeaturizerConformance):
        @pytest.fixture
        def featurizer(self) -> Featurizer:
            return make("my_package.mean_colour:MeanColour")
"""

import multiprocessing
import operator
import pickle
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from loader.dataset.commit import check_facts
from loader.modalities import decoder_for, encode
from loader.testing.modalities import damaged

from ..featurizers import Features, Featurizer
from ..featurizers.models import ModelFeaturizer
from ..media.unit import Unusable
from .sample_media import Sample, samples_of_every_kind

KINDS = {"image", "video", "audio", "text", "episode"}
Samples = Mapping[str, list[Sample]]

RUBBISH = [
    b"\x00",
    b"\xff\xd8\xff",
    b"\xff\xfe" * 40,
    bytes(range(256)) * 8,
    b"\x00\x00\x00\x18ftypisom" + bytes(2000),
    b"fLaC" + bytes(100),
    b"RIFF\xff\xff\xff\xffWAVE\x80\x81",
]


class FeaturizerConformance:
    """The contract of a featurizer. A subclass defines the fixture `featurizer`."""

    @pytest.fixture(scope="class")
    @classmethod
    def samples(cls) -> Samples:
        """Return kind -> samples. Override it for fields other than jpg, mp4, flac and txt."""
        return samples_of_every_kind()

    @pytest.fixture(scope="class")
    @classmethod
    def other_process(cls) -> Iterator[ProcessPoolExecutor]:
        """Yield a pool with one spawned process."""
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool

    def test_it_says_what_it_is(self, featurizer: Featurizer) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", featurizer.name)
        assert re.fullmatch(r"[0-9]+-[0-9a-f]{8}", featurizer.version)
        assert featurizer.version == pickled(featurizer).version
        assert featurizer.kinds
        assert featurizer.kinds <= KINDS
        for declared in (featurizer.inputs, featurizer.outputs, featurizer.columns):
            assert set(declared) == featurizer.kinds
        for fields in featurizer.inputs.values():
            assert fields
            assert all(decoder_for(field.removeprefix("*.")) for field in fields)

    def test_all_samples_of_a_kind_get_the_same_names(self, featurizer: Featurizer, samples: Samples) -> None:
        for kind in featurizer.kinds:
            results = [featurizer(kind, sample) for sample in samples[kind]]
            shapes = {(tuple(sorted(f.fields)), tuple(sorted(f.columns))) for f in results}
            assert len(shapes) == 1
            (shape,) = shapes
            assert any(shape)
            assert shape == (tuple(sorted(featurizer.outputs[kind])), tuple(sorted(featurizer.columns[kind])))
            for features in results:
                for name, value in features.fields.items():
                    back = decoder_for(name)(encode(name, value), None)
                    np.testing.assert_array_equal(back, value)

    def test_facts_are_those_of_its_fields(self, featurizer: Featurizer, samples: Samples) -> None:
        facts_of_fields = check_facts(featurizer.facts)
        assert facts_of_fields.keys() <= {field for fields in featurizer.outputs.values() for field in fields}
        assert facts_of_fields == check_facts(pickled(featurizer).facts)
        for kind in featurizer.kinds:
            values = featurizer(kind, samples[kind][0]).fields
            for field, facts in facts_of_fields.items():
                if "dims" in facts and field in values:
                    assert np.ndim(values[field]) == len(facts["dims"])

    def test_same_bytes_give_the_same_features(self, featurizer: Featurizer, samples: Samples) -> None:
        copy = pickled(featurizer)
        for kind in featurizer.kinds:
            for sample in samples[kind]:
                first = featurizer(kind, sample)
                assert same(first, featurizer(kind, sample))
                assert same(
                    first, copy(kind, {name: bytes(bytearray(data)) for name, data in sample.items()})
                )

    def test_kind_that_is_not_its_own_is_a_mistake(self, featurizer: Featurizer) -> None:
        with pytest.raises(ValueError, match="a sample of kind 'smell'; accepted: "):
            featurizer("smell", {})

    def test_missing_and_empty_inputs_are_rejected(self, featurizer: Featurizer) -> None:
        for kind, (field, *_) in featurizer.inputs.items():
            assert refusal(featurizer, kind, {}).code == "missing_field"
            assert refusal(featurizer, kind, {field: b""}).code == "empty"

    def test_rubbish_is_rejected(self, featurizer: Featurizer) -> None:
        for kind, (field, *_) in featurizer.inputs.items():
            for data in RUBBISH:
                if kind != "text" or not data.isascii():  # zero bytes are valid UTF-8
                    refusal(featurizer, kind, {field: data})

    def test_damaged_bytes_are_rejected_or_featurized_but_never_anything_else(
        self, featurizer: Featurizer, samples: Samples
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
            assert n_refused >= (1 if kind == "text" else 90)  # every truncated medium

    def test_spawned_process_makes_the_same(
        self, featurizer: Featurizer, samples: Samples, other_process: ProcessPoolExecutor
    ) -> None:
        for kind in featurizer.kinds:
            there = other_process.submit(operator.call, featurizer, kind, samples[kind][0])
            assert same(there.result(), featurizer(kind, samples[kind][0]))
            bad = other_process.submit(operator.call, featurizer, kind, {})
            assert isinstance(bad.exception(), Unusable)


class ModelConformance(FeaturizerConformance):
    """The contract of a `ModelFeaturizer`, which also needs the same bits in any batch."""

    def test_same_bits_in_any_batch(self, featurizer: Featurizer, samples: Samples) -> None:
        for kind in featurizer.kinds:
            in_any_batch(featurizer, kind, [*samples[kind], *samples[kind]])


def in_any_batch(featurizer: Featurizer, kind: str, samples: list[Sample]) -> None:
    """Assert that single samples, and batches of any order and size, give the same bits."""
    assert isinstance(featurizer, ModelFeaturizer)
    for model in (
        featurizer,
        replace(featurizer, batch_size=2),
        replace(featurizer, batch_size=2, max_batch_size=4),
    ):
        together = model.features(kind, samples)
        backwards = model.features(kind, samples[::-1])[::-1]
        for sample, *in_batches in zip(samples, together, backwards, strict=True):
            alone = model(kind, sample)
            for in_batch in in_batches:
                assert isinstance(in_batch, Features)
                assert same(in_batch, alone)


def same(first: Features, other: Features) -> bool:
    """Return whether the two are equal bit for bit, fields as stored."""
    stored = [{name: bytes(encode(name, value)) for name, value in f.fields.items()} for f in (first, other)]
    return stored[0] == stored[1] and dict(first.columns) == dict(other.columns)


def pickled(featurizer: Featurizer) -> Featurizer:
    copy: Featurizer = pickle.loads(pickle.dumps(featurizer))  # noqa: S301 - our own bytes
    return copy


def refusal(featurizer: Featurizer, kind: str, sample: Mapping[str, bytes]) -> Unusable:
    with pytest.raises(Unusable) as refused:
        featurizer(kind, sample)
    assert (refused.value.outcome, refused.value.stage) == ("rejected", "featurize")
    assert re.fullmatch(r"[a-z_]+", refused.value.code)
    assert refused.value.reason
    return refused.value


def features_or_refusal(
    featurizer: Featurizer, kind: str, sample: Mapping[str, bytes]
) -> Features | Unusable:
    try:
        return featurizer(kind, sample)
    except Unusable as refused:
        return refused
