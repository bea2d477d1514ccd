"""What a clip costs, in calls: a decoder per thread, a conversion per frame, no copy, and little Python."""

import io
import sys
from collections import Counter
from fractions import Fraction

import av
import numpy as np
import pytest

import loader
from loader.modalities.video.packet_table import index_packets

WIDTH, HEIGHT, N_FRAMES, BATCH = 96, 64, 16, 4
N_PACKETS = 10 + N_FRAMES
"""Packets from the keyframe before the clip's first frame, which is frame 10, to its last."""
MOST_CALLS = 700
"""Calls of Python's functions per clip, all stages of a batch included; 640 as this is written."""


def video(first):
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        options = {"crf": "30", "g": "12", "bf": "0", "preset": "ultrafast", "x264-params": "scenecut=0"}
        stream = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = WIDTH, HEIGHT, "yuv420p", 1
        for n in range(36):
            pixels = np.full((HEIGHT, WIDTH, 3), first, np.uint8)
            pixels[: n + 4, :, 1] = 200
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = n, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.fixture(scope="module")
def plan():
    with loader.Root("memory://run-video-counts") as root:
        with root.write("clips", groups={"mp4.packets": "media_index"}) as writer:
            for number in range(2 * BATCH):
                data = video(10 * number)
                writer.add(str(number), {"mp4": data, "mp4.packets": index_packets(data)})
        yield loader.plan({"v": writer.version.select("mp4")}, seed=5, global_batch=BATCH)


class Calls:
    """Counts the calls in this thread: of FFmpeg's wrappers by name, of Python's functions, and of values put."""

    def __init__(self):
        self.c, self.python, self.in_row = Counter(), 0, []

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _see(self, frame, event, called):
        if event == "c_call":
            name = getattr(called, "__qualname__", "")
            self.c[".".join(name.split(".")[-2:])] += 1
        elif event == "call":
            self.python += 1
            if frame.f_code.co_qualname == "Columns.put":
                self.in_row.append(frame.f_locals["in_row"])


@pytest.mark.parametrize(("size", "conversions"), [(None, 1), ((32, 48), 2)])
def test_clip_costs_few_calls(plan, size, conversions):
    """From the second epoch on: each clip begins at its video's first packet, and all are of one encoder."""
    decoder = loader.video(N_FRAMES, start=10, size=size)
    with loader.Loader(plan, 0, 1, decode={"mp4": decoder}, workers=0, prefetch=0, epochs=4) as batches:
        for _ in range(4):
            next(batches)
        with Calls() as calls:
            held = [next(batches) for _ in range(4)]
    n_clips = sum(len(batch["mp4"]) for batch in held)
    assert n_clips == 4 * BATCH
    assert calls.c["VideoCodecContext.open"] == 0
    assert calls.c["VideoCodecContext.flush_buffers"] == n_clips
    assert calls.c["VideoCodecContext.decode"] == n_clips * (N_PACKETS + 1)
    assert calls.c["VideoReformatter.reformat"] == n_clips * N_FRAMES * conversions
    assert calls.in_row == [True] * n_clips
    assert calls.python / n_clips < MOST_CALLS, calls.python / n_clips
