"""A stream whose frames change their size is refused by that name, and told where."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from assets.media.audit import audit
from assets.media.sniff import HEAD_BYTES, sniff
from assets.media.unit import Unusable
from fuzz.seeds import ordinary_priority

TICK = Fraction(1, 25)


def write_sizes(path: Path, codec: str, container: str, sizes: tuple[tuple[int, int], ...]) -> str:
    """Ten frames of each size, by an encoder of its own, in one stream."""
    with ordinary_priority(), av.open(str(path), "w", format=container) as out:
        stream = None
        for part, (width, height) in enumerate(sizes):
            encoder = out.add_stream(codec, rate=25) if stream is None else av.CodecContext.create(codec, "w")
            context = encoder.codec_context if stream is None else encoder
            stream = encoder if stream is None else stream
            context.width, context.height, context.pix_fmt, context.time_base = width, height, "yuv420p", TICK
            context.framerate, context.thread_count = Fraction(25), 1
            if codec == "libx264":
                context.options = {"tune": "zerolatency"}
            for number in range(10):
                pixels = np.full((height, width, 3), 30 + 4 * number, np.uint8)
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts, frame.time_base = 10 * part + number, TICK
                _put(out, stream, context.encode(frame))
            _put(out, stream, context.encode(None))
    return str(path)


def _put(out, stream, packets) -> None:
    for packet in packets:
        packet.stream = stream
        packet.time_base = TICK
        out.mux(packet)


CODECS = [("libx264", "mpegts"), ("libvpx", "webm"), ("libvpx-vp9", "webm")]


@pytest.mark.parametrize(("codec", "container"), CODECS)
@pytest.mark.parametrize("second", [(128, 96), (48, 32)], ids=["larger", "smaller"])
def test_resolution_that_changes(tmp_path: Path, codec: str, container: str, second: tuple[int, int]) -> None:
    path = write_sizes(tmp_path / "raw", codec, container, ((64, 48), second))
    with pytest.raises(Unusable) as caught:
        audit(path, sniff(Path(path).read_bytes()[:HEAD_BYTES]))
    assert (caught.value.code, caught.value.at_frame) == ("resolution_changes", 10)
    wanted = f"the resolution changes within the stream at frame 10 from 64x48 to {second[0]}x{second[1]}"
    assert wanted in caught.value.reason


@pytest.mark.parametrize(("codec", "container"), CODECS)
def test_one_that_stays(tmp_path: Path, codec: str, container: str) -> None:
    path = write_sizes(tmp_path / "raw", codec, container, ((64, 48), (64, 48)))
    assert audit(path, sniff(Path(path).read_bytes()[:HEAD_BYTES]))["n_frames_decoded"] == 20
