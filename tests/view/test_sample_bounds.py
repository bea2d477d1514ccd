"""The page of a sample decodes a part of what is long: a file of a megabyte may hold hours of silence."""

import io
import re

import av
import numpy as np
import pytest
from PIL import Image

import loader
from loader.modalities.audio import decode
from penstock.view.inspect.sample_record import sample_record
from penstock.view.inspect.slot_record import slot_record
from penstock.view.inspect.step_record import step_record
from penstock.view.kinds import stored_bytes
from penstock.view.open_data import OpenData
from penstock.view.replays import replays
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


def decode_lines(site):
    record = sample_record(site.opened.version("long", 1), 0)
    return {one.field: one.decoded.lines if one.decoded else (one.error,) for one in record.fields}


def test_sample_within_the_limits_is_decoded_whole(site):
    told = decode_lines(site)
    assert told["flac"][:2] == ("1 channel, 1:00 min at 8,000 Hz", "float32 [1, 480000]")
    assert told["png"][0].startswith("600 x 400 px")
    assert told["txt"][0] == "900 characters"


def test_sample_beyond_them_is_decoded_to_the_limit(site, monkeypatch):
    for name, most in {
        "MAX_AUDIO_BYTES": 4 * 8000,
        "MAX_IMAGE_PX": 600 * 399,
        "MAX_JSON_BYTES": 100,
        "MAX_TEXT_BYTES": 100,
    }.items():
        monkeypatch.setattr(stored_bytes, name, most)
    told = decode_lines(site)
    assert re.match(r"the first 1\.?0* s (is|are) shown", told["flac"][0])
    assert "float32 [1, 8000]" in told["flac"]
    assert told["png"] == ("600 x 400 px; at most 239,400 px are shown",)
    assert told["txt"][:2] == ("the first 100 B are shown", "50 characters")
    assert "characters" in told["json"][1]
    sound, _ = media.sample_media(site, site.opened.version("long", 1), 0, "flac")
    assert len(sound.data) < 4 * 8000 + 100


def silence_step(root, seconds, run, monkeypatch):
    """A training on a silence of so many seconds: its step and slot without a recipe, and the most bytes of a sound."""
    monkeypatch.setattr(replays, "MOST_AUDIO_BYTES", 4 * 8000 * 30)
    with root.write(run) as writer:
        writer.add("k", {"flac": flac(seconds)})
    plan = loader.plan({run: root.open(f"{run}@1").select("flac")}, seed=1, global_batch=1)
    trail = loader.Trail(root, run, tensors_every=1)
    with loader.Loader(plan, 0, 1, steps=1, trail=trail, workers=0, framework="numpy") as batches:
        list(batches)
    opened = OpenData(root)
    with monkeypatch.context() as patch:
        patch.setattr(decode.np, "concatenate", sizes := Sizes(np.concatenate))
        batch, _ = opened.batch(run, 0, 0, 1)
        values, trouble = opened.slot(run, 0, 0)
    training = opened.training(run)
    proofs = {one.name: one for one in step_record(training, batch, None).proofs}
    assert (proofs["bytes"].proved, proofs["code"].proved) == (True, True)
    record = slot_record(training, values, trouble)
    opened.close()
    return batch.slots[0].fields[0].lines, record.fields[0].decoded.lines, proofs["tensors"], sizes.most


class Sizes:
    """A function that gives arrays, and the bytes of the largest one."""

    def __init__(self, function):
        self.function, self.most = function, 0

    def __call__(self, *given, **named):
        found = self.function(*given, **named)
        self.most = max(self.most, found.nbytes)
        return found


def test_training_on_long_sounds_is_shown_by_their_beginning(root, monkeypatch):
    """Two hours of silence are a megabyte and a half of FLAC: as much of them is decoded as of a minute."""
    short, long = (silence_step(root, seconds, f"s{seconds}", monkeypatch) for seconds in (60, 600))
    assert short == long
    for lines in long[:2]:
        assert re.match(r"the first 30\.?0* s are decoded", lines[0])
        assert "float32 [1, 240000]" in lines
    assert long[2].proved is None
    assert long[2].text.startswith("flac: only the beginning of long audio is decoded")
    assert long[3] <= 4 * 8000 * 40


def test_sound_that_was_cut_is_known_as_long_as_it_lives(monkeypatch):
    monkeypatch.setattr(replays, "MOST_AUDIO_BYTES", 4 * 8000 * 2)
    starts = replays.AudioStarts()
    long, short = (starts.start(flac(seconds), None) for seconds in (3, 1))
    assert starts.cut({"flac": short, "wav": long}) == {"wav": "the first 2.0 s are decoded"}
    place = id(long)
    del long
    assert place not in starts.notes
