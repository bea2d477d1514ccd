"""Videos whose frames hold their own numbers."""

import io
from fractions import Fraction

import av
import numpy as np

WIDTH, HEIGHT, BLOCK, BITS = 120, 64, 12, 10
GOP12 = {"crf": "30", "g": "12", "bf": "0", "preset": "ultrafast"}
LONG = {"crf": "30", "g": "250", "bf": "3", "preset": "veryfast", "x264-params": "b-pyramid=normal"}


def draw_number(n):
    """A picture with the bits of `n` in its top row."""
    pixels = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
    pixels[BLOCK:, :, 0] = (np.arange(WIDTH) + 3 * n) % 256
    for bit in range(BITS):
        pixels[:BLOCK, bit * BLOCK : (bit + 1) * BLOCK] = 255 * (n >> bit & 1)
    return pixels


def read_numbers(clip):
    """Which frames a clip uint8 [T, 64, 120, 3] shows."""
    blocks = np.asarray(clip)[:, 3 : BLOCK - 3].reshape(len(clip), BLOCK - 6, BITS, BLOCK, 3)
    return ((blocks[:, :, :, 3:-3].mean((1, 3, 4)) > 128) @ (1 << np.arange(BITS))).tolist()


def video(n_frames, options=GOP12, *, first=0, pts=None, audio=False):
    """An mp4 whose frames are numbered from `first`, at 25 frames a second or at `pts` (1/1000 s)."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=1000, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = WIDTH, HEIGHT, "yuv420p", 1
        stream.codec_context.time_base = Fraction(1, 1000)
        sound = container.add_stream("aac", rate=16000, layout="mono") if audio else None
        for n in range(n_frames):
            frame = av.VideoFrame.from_ndarray(draw_number(first + n), format="rgb24")
            frame.pts, frame.time_base = 40 * n if pts is None else pts[n], Fraction(1, 1000)
            container.mux(stream.encode(frame))
            if sound is not None:
                noise = av.AudioFrame.from_ndarray(np.zeros((1, 640), np.float32), "fltp", "mono")
                noise.sample_rate, noise.pts = 16000, 640 * n
                container.mux(sound.encode(noise))
        container.mux(stream.encode(None))
    return file.getvalue()
