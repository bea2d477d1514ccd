"""How other libraries read chosen frames of a video, each in its documented way, with one thread.

A peer is two functions: `read(path, frames, times, size)` gives uint8 [T, H, W, 3] RGB of the frames with these
numbers (display order) and times (seconds); `sequence(path)` gives every frame from the start.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import av
import numpy as np

Size = tuple[int, int] | None
Frames = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    read: Callable[[str, Sequence[int], Sequence[Fraction], Size], Frames]
    sequence: Callable[[str], Iterator[Frames]]


def pyav(path: str, frames: Sequence[int], times: Sequence[Fraction], size: Size) -> Frames:
    """Seek to the time, decode until the frame; neighbours in one go."""
    out: dict[int, Frames] = {}
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        base = stream.time_base or Fraction(1)
        wanted = sorted(set(zip(frames, (round(time / base) for time in times), strict=True)))
        for _, run in groupby(enumerate(wanted), key=lambda item: item[1][0] - item[0]):
            ticks = {pts: number for _, (number, pts) in run}
            container.seek(min(ticks), stream=stream)
            for frame in container.decode(stream):
                if frame.pts in ticks:
                    out[ticks[frame.pts]] = _array(frame, size)
                if frame.pts is not None and frame.pts >= max(ticks):
                    break
    return np.stack([out[number] for number in frames])


def pyav_sequence(path: str) -> Iterator[Frames]:
    with av.open(path) as container:
        container.streams.video[0].thread_count = 1
        for frame in container.decode(video=0):
            yield _array(frame, None)


def _array(frame: av.VideoFrame, size: Size) -> Frames:
    if size is None:
        return frame.to_ndarray(format="rgb24")
    return frame.to_ndarray(format="rgb24", width=size[1], height=size[0])


def torchcodec(mode: str) -> Peer:
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize

    def opened(path: str, size: Size) -> Any:
        transforms = [Resize(size)] if size else None
        return VideoDecoder(
            path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode=mode, transforms=transforms
        )

    def read(path: str, frames: Sequence[int], times: Sequence[Fraction], size: Size) -> Frames:
        found: Frames = opened(path, size).get_frames_at(list(frames)).data.numpy()
        return found

    def sequence(path: str) -> Iterator[Frames]:
        for frame in opened(path, None):
            yield frame.numpy()

    return Peer(read=read, sequence=sequence)


def decord() -> Peer:
    import decord as library

    def opened(path: str, size: Size) -> Any:
        height, width = size or (-1, -1)
        return library.VideoReader(path, ctx=library.cpu(0), width=width, height=height, num_threads=1)

    def read(path: str, frames: Sequence[int], times: Sequence[Fraction], size: Size) -> Frames:
        try:
            found: Frames = opened(path, size).get_batch(list(frames)).asnumpy()
        except library.DECORDError as error:
            raise ValueError(f"decord: {error}") from error
        return found

    def sequence(path: str) -> Iterator[Frames]:
        try:
            reader = opened(path, None)
            for _ in range(len(reader)):
                yield reader.next().asnumpy()
        except library.DECORDError as error:
            raise ValueError(f"decord: {error}") from error

    return Peer(read=read, sequence=sequence)


def opencv() -> Peer:
    os.environ.setdefault("OPENCV_FFMPEG_CAPTURE_OPTIONS", "threads;1")
    import cv2

    cv2.setNumThreads(1)

    def read(path: str, frames: Sequence[int], times: Sequence[Fraction], size: Size) -> Frames:
        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
        out: dict[int, Frames] = {}
        at = -1
        for number in sorted(set(frames)):
            if number != at:
                capture.set(cv2.CAP_PROP_POS_FRAMES, number)
            _, picture = capture.read()
            at = number + 1
            if picture is None:
                raise ValueError(f"no frame {number}")
            if size:
                picture = cv2.resize(picture, size[::-1], interpolation=cv2.INTER_AREA)
            out[number] = cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
        capture.release()
        return np.stack([out[number] for number in frames])

    def sequence(path: str) -> Iterator[Frames]:
        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
        while True:
            there, picture = capture.read()
            if not there:
                return
            yield cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)

    return Peer(read=read, sequence=sequence)


def installed() -> dict[str, Peer]:
    """Name -> peer, of those that are here; plain PyAV always is."""
    found = {"PyAV": Peer(read=pyav, sequence=pyav_sequence)}
    if find_spec("torchcodec"):
        found["torchcodec, exact"] = torchcodec("exact")
        found["torchcodec, approximate"] = torchcodec("approximate")
    if find_spec("decord"):
        found["decord"] = decord()
    if find_spec("cv2"):
        found["OpenCV"] = opencv()
    return found
