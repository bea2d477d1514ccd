"""Conformance suites for featurizers, with or without a model.

Subclass one in a test module, `ModelConformance` for a model:

    class TestMeanColour(FeaturizerConformance):
        @pytest.fixture
        def featurizer(self) -> Featurizer:
            return make("my_package.mean_colour:MeanColour")
"""

import io
import multiprocessing
import operator
import pickle
import re
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from loader.dataset.publishing.commit import check_facts
from loader.modalities import encode, find_decoder
from loader.modalities.video.packet_table import index_packets
from loader.testing.modalities import damaged

from ..featurizers import Features, Featurizer
from ..featurizers.models import ModelFeaturizer
from ..media.unit import Unusable

Array = np.ndarray[Any, np.dtype[Any]]
Sample = Mapping[str, bytes]
"""Field -> its encoded bytes."""


def scene(seed: int, height: int = 120, width: int = 160, shift: float = 0.0) -> Array:
    """Return uint8 [H, W, 3]: a smooth random landscape, shifted right by `shift` pixels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    x = x - shift
    out = np.zeros((height, width, 3))
    for _ in range(14):
        fy, fx = rng.uniform(-4, 4, 2)
        wave = np.cos(2 * np.pi * (fy * y / height + fx * x / width) + rng.uniform(0, 6.28))
        out += wave[:, :, None] * rng.uniform(0.2, 1, 3)
    return np.clip(128 + 24 * out, 0, 255).astype(np.uint8)


def jpeg(pixels: Array, quality: int = 92) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "JPEG", quality=quality)
    return sink.getvalue()


def mp4(pictures: list[Array], *, crf: int = 18, colour_range: str = "tv") -> bytes:
    """Encode images as H.264 at 25 frames per second, BT.601. colour_range: limited ("tv") or full ("pc")."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "clip.mp4")
        with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as out:
            stream = out.add_stream("libx264", rate=25, options={"crf": str(crf), "g": "12", "bf": "0"})
            height, width = pictures[0].shape[:2]
            stream.width = width
            stream.height = height
            stream.pix_fmt = "yuv420p"
            stream.codec_context.color_range = 1  # AVCOL_RANGE_MPEG
            if colour_range == "pc":
                stream.pix_fmt = "yuvj420p"  # FFmpeg's older name of full range
                stream.codec_context.color_range = 2  # AVCOL_RANGE_JPEG
            stream.codec_context.time_base = Fraction(1, 25)
            stream.codec_context.colorspace = 6  # BT.601; untagged colours would be a guess
            for number, picture in enumerate(pictures):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts = number
                frame.time_base = Fraction(1, 25)
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        return path.read_bytes()


def flac(samples: Array, rate_hz: int = 48_000, bits: int = 24) -> bytes:
    """Encode float [channels, samples], -1 to 1, as FLAC."""
    sink = io.BytesIO()
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
    form = "s32"
    full = 2**31  # FFmpeg's encoder takes 24 bits left-aligned
    dtype: type[np.signedinteger] = np.int32
    if bits == 16:
        form = "s16"
        full = 2**15
        dtype = np.int16
    scaled = np.rint(samples.astype(np.float64) * full)
    whole = np.clip(scaled, -full, full - 1)
    packed = whole.T.reshape(1, -1).astype(dtype)  # [1, samples x channels], interleaved
    with av.open(sink, "w", format="flac") as out:
        stream = out.add_stream("flac", rate=rate_hz, layout=layout, format=form)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(packed), format=form, layout=layout)
        frame.sample_rate = rate_hz
        frame.pts = 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return sink.getvalue()


def sine(
    amplitude: float,
    seconds: float,
    rate_hz: int = 48_000,
    hz: float = 1000.0,
) -> Array:
    n_samples = round(seconds * rate_hz)
    phase = 2 * np.pi * hz * np.arange(n_samples) / rate_hz
    return amplitude * np.sin(phase)


def npy(values: Array) -> bytes:
    sink = io.BytesIO()
    np.save(sink, values)
    return sink.getvalue()


def samples_of_every_kind() -> Mapping[str, list[Sample]]:
    """Return kind -> samples with `jpg`, `mp4`, `flac`, `txt`, or actions of an episode with a camera."""
    # Several of each kind, of different sizes and lengths: names must not depend on them.
    # The same scene moves by 4 px a frame: coded as motion, not as 20 scenes.
    moving = [scene(3, shift=4 * number) for number in range(20)]
    noise = np.random.default_rng(1).normal(0, 0.1, (2, 30_000))
    return {
        "image": [{"jpg": jpeg(scene(1))}, {"jpg": jpeg(scene(2, 90, 40))}],
        "video": [{"mp4": mp4(moving)}, {"mp4": mp4([scene(4)])}],
        "audio": [
            {"flac": flac(noise)},
            {"flac": flac(sine(0.3, 1.0, 16_000)[None], 16_000, bits=16)},
            {"flac": flac(np.zeros((1, 900)), 16_000)},
        ],
        "episode": [
            {
                "action.npy": npy(np.cumsum(noise[:, :20].T, 0)),
                "action.ns.npy": npy(np.arange(20) * 40_000_000),
                "cam.mp4.packets": index_packets(mp4(moving)),
            },
            {"action.npy": npy(np.zeros((30, 2), np.float32))},
        ],
        "text": [{"txt": b"A horse, a horse!\n"}, {"txt": "狗 und Füße 🙂 </s>".encode()}],
    }


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
        # A fork would inherit what the parent computed, and hide what does not pickle.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            yield pool

    def test_it_says_what_it_is(self, featurizer: Featurizer) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", featurizer.name)
        assert re.fullmatch(r"[0-9]+-[0-9a-f]{8}", featurizer.version)
        assert featurizer.version == pickle_copy(featurizer).version
        assert featurizer.kinds
        assert featurizer.kinds <= KINDS
        for declared in (featurizer.inputs, featurizer.outputs, featurizer.columns):
            assert set(declared) == featurizer.kinds
        for fields in featurizer.inputs.values():
            assert fields
            # An input "*.jpg" stands for every field of that suffix.
            assert all(find_decoder(field.removeprefix("*.")) for field in fields)

    def test_all_samples_of_a_kind_get_the_same_names(self, featurizer: Featurizer, samples: Samples) -> None:
        for kind in featurizer.kinds:
            outputs = sorted(featurizer.outputs[kind])
            columns = sorted(featurizer.columns[kind])
            assert outputs or columns
            results = [featurizer(kind, sample) for sample in samples[kind]]
            for features in results:
                assert sorted(features.fields) == outputs
                assert sorted(features.columns) == columns
                for name, value in features.fields.items():
                    # Whatever the featurizer returns, a training reads it from its encoding.
                    back = find_decoder(name)(encode(name, value), None)
                    np.testing.assert_array_equal(back, value)

    def test_facts_are_those_of_its_fields(self, featurizer: Featurizer, samples: Samples) -> None:
        facts_of_fields = check_facts(featurizer.facts)
        outputs = set().union(*featurizer.outputs.values())
        assert facts_of_fields.keys() <= outputs
        assert facts_of_fields == check_facts(pickle_copy(featurizer).facts)
        for kind in featurizer.kinds:
            values = featurizer(kind, samples[kind][0]).fields
            for field, facts in facts_of_fields.items():
                if "dims" in facts and field in values:
                    assert np.ndim(values[field]) == len(facts["dims"])

    def test_same_bytes_give_the_same_features(self, featurizer: Featurizer, samples: Samples) -> None:
        copy = pickle_copy(featurizer)
        for kind in featurizer.kinds:
            for sample in samples[kind]:
                first = featurizer(kind, sample)
                assert same(first, featurizer(kind, sample))
                # Other objects with the same bytes: no cache may be keyed by identity.
                again = {name: bytes(bytearray(data)) for name, data in sample.items()}
                assert same(first, copy(kind, again))

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
                # Changed bytes may decode to something else, truncated ones may not.
                features = features_or_refusal(featurizer, kind, {**sample, field: data})
                if isinstance(features, Unusable):
                    n_refused += 1
                    assert (features.outcome, features.stage) == ("rejected", "featurize")
                else:
                    assert features.columns.keys() == whole.columns.keys()
                    assert features.fields.keys() == whole.fields.keys()
            least = 90  # most truncations of a medium
            if kind == "text":
                least = 1  # a shorter text is a text
            assert n_refused >= least

    def test_spawned_process_makes_the_same(
        self, featurizer: Featurizer, samples: Samples, other_process: ProcessPoolExecutor
    ) -> None:
        for kind in featurizer.kinds:
            sample = samples[kind][0]
            spawned = other_process.submit(operator.call, featurizer, kind, sample)
            assert same(spawned.result(), featurizer(kind, sample))
            # A refusal must pickle, or the pool breaks.
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
    models = (
        featurizer,
        replace(featurizer, batch_size=2),
        replace(featurizer, batch_size=2, max_batch_size=4),
    )
    for model in models:
        together = model.features(kind, samples)
        backwards = model.features(kind, samples[::-1])[::-1]  # other neighbours, other padding
        for sample, *in_batches in zip(samples, together, backwards, strict=True):
            alone = model(kind, sample)
            for in_batch in in_batches:
                assert isinstance(in_batch, Features)
                assert same(in_batch, alone)


def same(first: Features, other: Features) -> bool:
    """Return whether the two are equal bit for bit, fields as stored."""
    if dict(first.columns) != dict(other.columns):
        return False
    return _stored(first) == _stored(other)


def _stored(features: Features) -> dict[str, bytes]:
    return {name: bytes(encode(name, value)) for name, value in features.fields.items()}


def pickle_copy(featurizer: Featurizer) -> Featurizer:
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
