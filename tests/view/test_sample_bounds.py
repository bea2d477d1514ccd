"""The page of a sample decodes a part of what is long: a file of a megabyte may hold hours of silence."""

import io
import re

import av
import numpy as np
import pytest
from PIL import Image

from penstock.view.inspect.sample_record import sample_record
from penstock.view.kinds import stored_bytes
from penstock.view.open_data import OpenData
from penstock.view.web import media
from penstock.view.web.page import Site


def flac(seconds, rate_hz=8000):
    """FLAC bytes of silence, mono."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=rate_hz)
        stream.layout = "mono"
        for second in range(seconds):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, rate_hz), np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = rate_hz, second * rate_hz
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return sink.getvalue()


def png(width, height):
    sink = io.BytesIO()
    Image.new("L", (width, height)).save(sink, "PNG")
    return sink.getvalue()


@pytest.fixture
def site(root):
    with root.write("long") as writer:
        writer.add(
            "k", {"flac": flac(60), "png": png(600, 400), "json": {"a": list(range(500))}, "txt": "é" * 900}
        )
    opened = OpenData(root)
    yield Site(opened=opened)
    opened.close()


def decoded_lines(site):
    record = sample_record(site.opened.version("long", 1), 0)
    return {one.field: one.decoded.lines if one.decoded else (one.error,) for one in record.fields}


def test_a_sample_within_the_limits_is_decoded_whole(site):
    told = decoded_lines(site)
    assert told["flac"][:2] == ("1 channel, 1:00 min at 8,000 Hz", "float32 [1, 480000]")
    assert told["png"][0].startswith("600 x 400 px")
    assert told["txt"][0] == "900 letters"


def test_a_sample_beyond_them_is_decoded_to_the_limit(site, monkeypatch):
    for name, most in {
        "MAX_SOUND_BYTES": 4 * 8000,
        "MAX_PICTURE_PX": 600 * 399,
        "MAX_JSON_BYTES": 100,
        "MAX_TEXT_BYTES": 100,
    }.items():
        monkeypatch.setattr(stored_bytes, name, most)
    told = decoded_lines(site)
    assert re.match(r"the first 1\.?0* s (is|are) shown", told["flac"][0])
    assert "float32 [1, 8000]" in told["flac"]
    assert told["png"] == ("600 x 400 px; at most 239,400 px are shown",)
    assert told["txt"][:2] == ("the first 100 B are shown", "50 letters")
    assert "letters" in told["json"][1]
    sound, _ = media.sample_media(site, site.opened.version("long", 1), 0, "flac")
    assert len(sound.data) < 4 * 8000 + 100
