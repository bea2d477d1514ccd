"""What holds for every decoder in the registry: a new line there is tested here."""

import io
import mmap
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from loader.errors import DecodeFailed
from loader.modalities import decoder_for, encode, known_extensions

GARBAGE = b"\xff\xfe\x00\x01 no such format"


def picture(kind):
    file = io.BytesIO()
    Image.fromarray(np.zeros((10, 10, 3), np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def samples(videos):
    """Good bytes by last word, for the words whose bytes can be made here."""
    return {
        "jpg": picture("JPEG"),
        "png": picture("PNG"),
        "webp": picture("WEBP"),
        "img": picture("WEBP"),
        "mp4": videos["gop12"][0],
        "mov": videos["one_gop_b"][0],
        "npy": encode("npy", np.arange(6).reshape(2, 3)),
        "txt": encode("txt", "é"),
        "json": encode("json", {"a": [1, None]}),
        "jsonl": encode("jsonl", [1, "b"]),
        "cls": encode("cls", -3),
    }


@pytest.mark.parametrize("word", known_extensions())
def test_garbage_is_refused_with_a_reason(word):
    with pytest.raises(DecodeFailed) as caught:
        decoder_for(word)(GARBAGE, None)
    assert len(str(caught.value)) > 10


def test_every_kind_of_buffer_decodes_alike(samples, tmp_path):
    for word, data in samples.items():
        decoder = decoder_for(f"field.{word}")
        wanted = decoder(data, None)
        path = tmp_path / word
        path.write_bytes(data)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for buffer in (bytearray(data), memoryview(data), mapped):
                got = decoder(buffer, None)
                assert type(got) is type(wanted)
                assert np.array_equal(got, wanted) if isinstance(wanted, np.ndarray) else got == wanted, word


@pytest.mark.parametrize(
    ("absent", "call", "extra"),
    [
        ("simplejpeg", "decoder_for('jpg')", "image"),
        ("PIL", "decoder_for('png')", "image"),
        ("av", "decoder_for('wav')", "audio"),
        ("av", "decoder_for('mp4')(b'', None)", "video"),
    ],
)
def test_a_missing_package_is_named_with_its_pip_line(absent, call, extra):
    code = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "from loader.errors import MissingDependency\n"
        "from loader.modalities import decoder_for\n"
        f"try: {call}\n"
        "except MissingDependency as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'penstock[{extra}]'" in done.stdout
    assert repr(absent) in done.stdout
