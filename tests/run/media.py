"""Small pictures, sounds and videos whose content says which sample they are of."""

import io

import av
import numpy as np
from PIL import Image

RATE_HZ = 8000


def picture(i, format, size_px=(12, 16)):
    """A plain picture of gray level 10 * i, (height, width) px."""
    out = io.BytesIO()
    pixels = np.full((*size_px, 3), 10 * i, np.uint8)
    Image.fromarray(pixels).save(out, format, **({"quality": 95} if format == "JPEG" else {"lossless": True}))
    return out.getvalue()


def sound(i, codec, container):
    """400 samples of value 256 * i in one channel of 16 bits."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=RATE_HZ)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.full((1, 400), 256 * i, np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE_HZ, 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    return out.getvalue()


def video(i, n_frames=40):
    """64 x 48 px; the left half of frame n has gray level 6 * n, the right half 20 * i."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=25, options={"qp": "1", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(n_frames):
            pixels = np.full((48, 64, 3), 20 * i, np.uint8)
            pixels[:, :32] = 6 * n
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    return out.getvalue()


def first_frame(clip):
    """Which frame of `video` a decoded clip uint8 [T, 48, 64, 3] begins with."""
    return round(float(np.asarray(clip)[0, 8:40, 8:24].mean()) / 6)


def clip_sample(clip):
    """Which sample a decoded clip is of."""
    return round(float(np.asarray(clip)[0, 8:40, 40:56].mean()) / 20)
