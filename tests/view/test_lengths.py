"""Sound and picture of one sample that differ in length: marked on every page, and nothing where they do not."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from penstock.view.inspect.sample_record import sample_record
from penstock.view.kinds import Facts
from penstock.view.shown_values import show_sample, show_value

RATE, FPS = 8000, 10


def film(seconds, sound_s=None, fps=FPS):
    """MP4 of moving pictures, with a sound of its own length."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        pictures = container.add_stream("libx264", rate=fps, options={"crf": "30"})
        pictures.width, pictures.height, pictures.pix_fmt = 32, 32, "yuv420p"
        sound = container.add_stream("aac", rate=RATE, layout="mono") if sound_s else None
        for n in range(round(seconds * fps)):
            pixels = np.random.default_rng(n).integers(0, 256, (32, 32, 3), np.uint8)
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(pictures.encode())
        if sound is not None:
            samples = (
                np.random.default_rng(1).uniform(-0.5, 0.5, (1, round(sound_s * RATE))).astype(np.float32)
            )
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
            container.mux(sound.encode(frame))
            container.mux(sound.encode())
    return sink.getvalue()


def wave(seconds):
    """WAV of noise."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        samples = np.random.default_rng(2).integers(-9000, 9000, (1, round(seconds * RATE)), np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return sink.getvalue()


def texts(marks):
    return [one.text for one in marks if one.name == "lengths_differ"]


def test_film_whose_sound_ends_early() -> None:
    assert texts(show_value("mp4", film(3, 3), Facts(field="mp4")).marks) == []
    assert texts(show_value("mp4", film(3), Facts(field="mp4")).marks) == []
    (text,) = texts(show_value("mp4", film(3, 2), Facts(field="mp4")).marks)
    assert text.startswith("the video takes 3.0 s, its audio takes 2.0 s")


def test_film_of_few_frames_may_end_with_its_last_one() -> None:
    assert texts(show_value("mp4", film(4, 3.2, fps=2), Facts(field="mp4")).marks) == []
    assert texts(show_value("mp4", film(4, 2.5, fps=2), Facts(field="mp4")).marks) != []


@pytest.mark.parametrize(("sound_s", "marked"), [(2.0, False), (2.2, False), (2.6, True), (1.0, True)])
def test_sound_beside_its_film(root, sound_s, marked) -> None:
    with root.write("films") as writer:
        writer.add("a", {"mp4": film(2), "wav": wave(sound_s)})
    record = sample_record(root.open("films@latest"), 0)
    marks = {one.field: texts(one.decoded.marks) for one in record.fields}
    assert bool(marks["mp4"]) is marked
    assert marks["wav"] == []


def test_arrays_whose_rates_are_told(root) -> None:
    told = {"clip.npy": {"rate": FPS}, "sound.npy": {"rate": RATE}}
    clip = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), np.uint8)
    with root.write("arrays", facts=told) as writer:
        writer.add("a", {"clip.npy": clip, "sound.npy": np.zeros((1, 8), np.float32)})
    version = root.open("arrays@latest")
    for seconds, marked in ((2.0, False), (1.0, True)):
        sound = np.random.default_rng(1).uniform(-1, 1, (1, round(seconds * RATE))).astype(np.float32)
        found = {one.field: one for one in show_sample({"clip.npy": clip, "sound.npy": sound}, version)}
        assert (found["clip.npy"].kind, found["sound.npy"].kind) == ("video", "audio")
        assert bool(texts(found["clip.npy"].marks)) is marked
        assert texts(found["sound.npy"].marks) == []
