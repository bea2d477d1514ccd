"""What holds for every decoder in the registry: a new line there is tested here."""

import io

import av
import numpy as np
import pytest
from PIL import Image

from fuzz.seeds import ordinary_priority
from loader.modalities import DECODERS, ENCODERS, decoder_extensions, encode, find_decoder
from loader.modalities.array import FLAT
from loader.modalities.fields import load
from loader.testing.modalities import Modality, ModalityConformance, same
from tests.servers.processes import python

SOUNDS = {  # word -> FFmpeg's container and encoder, and the form of its samples
    "wav": ("wav", "pcm_s16le", "s16"),
    "flac": ("flac", "flac", "s16"),
    "mp3": ("mp3", "libmp3lame", "s16p"),
    "ogg": ("ogg", "libopus", "s16"),
    "opus": ("ogg", "libopus", "s16"),
    "m4a": ("ipod", "aac", "fltp"),
}
VALUES = {
    "npy": [np.arange(6).reshape(2, 3), np.full((), 2.5, np.float32)],
    "txt": ["é", ""],
    "json": [{"a": [1, None]}, "é"],
    "jsonl": [[1, "b"], []],
    "cls": [-3, 2**63 - 1],
}


def picture(kind):
    file = io.BytesIO()
    Image.fromarray(np.zeros((10, 10, 3), np.uint8)).save(file, kind)
    return file.getvalue()


def matroska(kind, codec, pictures):
    file = io.BytesIO()
    with ordinary_priority(), av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=25, options={"g": "5"})
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt, stream.thread_count = "yuv420p", 1
        for pixels in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def sound(kind, codec, form):
    file = io.BytesIO()
    wave = np.sin(np.arange(9600) / 20)[None]
    samples = wave.astype(np.float32) if form == "fltp" else (wave * 2**14).astype(np.int16)
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=48_000, layout="mono")
        for at in range(0, samples.shape[1], 960):
            frame = av.AudioFrame.from_ndarray(samples[:, at : at + 960].copy(), form, "mono")
            frame.sample_rate, frame.pts = 48_000, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.fixture(scope="module")
def samples(videos, media):
    """word -> good bytes."""
    few = [media.numbered(n) for n in range(20)]
    return {
        "jpg": picture("JPEG"),
        "jpeg": picture("JPEG"),
        "png": picture("PNG"),
        "webp": picture("WEBP"),
        "img": picture("WEBP"),
        "mp4": videos["gop12"][0],
        "mov": videos["one_gop_b"][0],
        "webm": matroska("webm", "libvpx", few),
        "mkv": matroska("matroska", "libx264", few),
        **{word: sound(*how) for word, how in SOUNDS.items()},
        **{word: np.arange(5).astype(f"<{word}").tobytes() for word in FLAT},
        **{word: bytes(encode(word, values[0])) for word, values in VALUES.items()},
    }


class TestModalities(ModalityConformance):
    @pytest.fixture(params=decoder_extensions())
    def modality(self, request, samples):
        word = request.param
        encoder = load(ENCODERS[word][0]) if word in ENCODERS else None
        return Modality(
            decode=find_decoder(f"field.{word}"),
            samples=[samples[word]],
            **({"garbage": None} if word in ("u1", "i1") else {}),
            encode=encoder,
            values=VALUES.get(word, ()),
        )


def decode_label(data, rng):
    """A text; NaN for an empty field, as a float and within a mapping."""
    text = bytes(data).decode("latin-1")
    if not text:
        return {"label": float("nan"), "score": np.float32("nan")}
    return {"label": text, "score": np.float32("nan")}


class TestDecoderOfEmptyFields(ModalityConformance):
    """A decoder may accept an empty field, and return NaN."""

    @pytest.fixture
    def modality(self):
        return Modality(decode=decode_label, samples=[b"", b"a"], garbage=None)


def test_same_value_has_the_same_type_and_nan():
    nan = float("nan")
    assert same([nan, {"x": np.float64(nan)}], [nan, {"x": np.float64(nan)}])
    assert not same(nan, 0.0)
    assert not same(0.0, nan)
    assert not same(nan, np.float64(nan))


def test_every_word_has_its_examples(samples):
    assert samples.keys() == DECODERS.keys()
    assert VALUES.keys() == ENCODERS.keys()


@pytest.mark.parametrize(
    ("absent", "call", "extra"),
    [
        ("simplejpeg", "find_decoder('jpg')", "image"),
        ("PIL", "find_decoder('png')", "image"),
        ("av", "find_decoder('wav')", "audio"),
        ("av", "find_decoder('mp4')(b'', None)", "video"),
        ("pytest", "import loader.testing", "testing"),
    ],
)
def test_missing_package_is_named_with_its_pip_line(absent, call, extra):
    code = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "from loader.errors import MissingDependency\n"
        "from loader.modalities import find_decoder\n"
        f"try: {call}\n"
        "except MissingDependency as error: print(error)\n"
    )
    done = python("-c", code, check=True)
    assert f"pip install 'penstock-data[{extra}]'" in done.stdout
    assert repr(absent) in done.stdout
