"""Video requests: the frames of a clip, and their size."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from ...errors import DecodeFailed, InvalidRuntime
from ..fields import Buffer, last_word, load
from ..image.crop import BITS, Bits, Box, Framing, Size
from ..image.request import GivenSize, parse_frames, parse_size
from .packet_table import SUFFIX, read_packets
from .timeline import Time, Timeline

DEFAULT_FRAMES = 16

At = Time | tuple[Time, ...] | str | None


class Choice(NamedTuple):
    frames: list[int]
    """Frame numbers in display order; may repeat."""
    framing: Framing
    """Crop and size of the frames."""
    times_s: list[float]
    """Seconds at which these frames are first shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoDecoder:
    """Decodes frames of a video to [T, H, W, C]: see `loader.video`."""

    frames: int = DEFAULT_FRAMES
    """Number of frames in the clip."""
    stride: int = 1
    """Displayed frames from one frame of the clip to the next."""
    size: Size | None = None
    """(height, width) in pixels; None for the stored size."""
    start: int | None = None
    """Number of the first frame in display order; None for `at` or a random draw."""
    at: At = None
    """Time of the first frame, or of all, in seconds; or another video field; None for `start` or a random draw."""
    crop: str | Box | None = None
    """"center", "random" or (top, left, height, width); None stretches the whole frame to `size`."""
    times: bool = False
    """True adds the field `<field>.times`: float64 [T] seconds on the video's own clock."""
    bits: Bits | None = None
    """8: uint8 RGB. 16: uint16. None: uint8 RGB of colour, uint16 of gray of more than 8 bits."""

    def __post_init__(self) -> None:
        if self.frames < 1 or self.stride < 1:
            raise InvalidRuntime(
                f"video(frames={self.frames}, stride={self.stride}): both are at least 1",
                what="frames and stride",
                given=[self.frames, self.stride],
                accepted="at least 1",
            )
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise InvalidRuntime(
                f"video(size={self.size}): (height, width) in px, each at least 1, or None",
                what="size",
                given=self.size,
                accepted="(height, width) in px, each at least 1, or None",
            )
        if self.start is not None and self.start < 0:
            raise InvalidRuntime(
                f"video(start={self.start}): a frame number from 0, or None for a drawn place",
                what="start",
                given=self.start,
                accepted="a frame number from 0, or None",
            )
        if self.at is not None and self.start is not None:
            raise InvalidRuntime(
                f"video(at={self.at!r}, start={self.start}): give one of them",
                what="at and start",
                given=[self.at, self.start],
                accepted="one of them",
            )
        if self.bits not in (None, *BITS):
            raise InvalidRuntime(
                f"video(bits={self.bits!r}): 8, 16 or None",
                what="bits",
                given=self.bits,
                accepted=[8, 16, None],
            )
        self._check_crop()

    def __call__(self, data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return the clip, from a whole file.

        Raises: DecodeFailed if the file is damaged or not a video, has too few frames, or shows nothing at a requested
        time; InvalidRuntime if `at` names a field; MissingDependency (av).
        """
        if self.leader is not None:
            raise InvalidRuntime(
                f"video(at={self.at!r}) follows another field of its sample; give it to a Loader: "
                f"decode={{{self.at!r}: loader.video(...), 'other.mp4': loader.video(at={self.at!r})}}",
                what="at",
                given=self.at,
                accepted="a Loader",
            )
        read: dict[str, np.ndarray] = load("video.decode:read_whole")(
            {"": data}, lambda timelines: choose({"": self}, timelines, {"": rng})
        )
        return read[""]

    def of_run(self, data: Buffer, packets: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
        table = read_packets(packets)
        timeline = Timeline.of_table(table)
        choice = choose({"": self}, {"": timeline}, {"": rng})[""]
        clip: np.ndarray = load("video.decode:read_run")(table, timeline, data, choice)
        return clip

    @property
    def leader(self) -> str | None:
        """The field whose frame times this one follows, or None."""
        if isinstance(self.at, str):
            return self.at
        return None

    def choose_frames(
        self, timeline: Timeline, rng: np.random.Generator | None, among: tuple[int, int] | None = None
    ) -> list[int]:
        """Return the numbers of the chosen frames, in display order. O(frames).

        A decoder with a leader, whose `at` names a field, draws as one without `at`.

        among: frame range [first, stop) for a random draw, if other cameras show less; None for all frames. rng: None
        for the first possible frames instead of a draw. Raises: DecodeFailed if there are too few frames, or nothing is
        shown at a requested time.
        """
        if isinstance(self.at, tuple):
            return [timeline.frame_number(time) for time in self.at]
        span = (self.frames - 1) * self.stride + 1  # displayed frames from the clip's first to its last
        n_frames = len(timeline)
        start = self.start
        # A text is the leader's name, not a time.
        if self.at is not None and not isinstance(self.at, str):
            start = timeline.frame_number(self.at)
        if start is not None:
            if start + span > n_frames:
                raise self._too_few(n_frames, start + span, start)
            return list(range(start, start + span, self.stride))

        # A draw from the starts of clips that end within [first, stop).
        first = 0
        stop = n_frames
        if among is not None:
            first, stop = among
        if first + span > stop:
            together = " at whose times all cameras show something"
            if (first, stop) == (0, n_frames):
                together = ""
            raise self._too_few(stop - first, span, 0, together)
        start = first
        if rng is not None:
            n_starts = stop - span - first + 1
            start += int(rng.integers(n_starts))
        return list(range(start, start + span, self.stride))

    def _too_few(self, n_frames: int, needed: int, start: int, together: str = "") -> DecodeFailed:
        """Return the error of a video with fewer frames than a clip from frame `start` on needs."""
        return DecodeFailed(
            f"video: {n_frames} frames{together}, but {self.frames} of stride {self.stride} from frame {start} on take "
            f"{needed}. Filter by length, or ask for fewer with loader.video",
            what="frames",
            given=n_frames,
            accepted=needed,
        )

    def framing(self, rng: np.random.Generator | None) -> Framing:
        """Return the crop and size of the frames, which are the same for the whole clip."""
        draws = self.crop == "random" and rng is not None
        place = None
        if draws and rng is not None:
            place = (float(rng.random()), float(rng.random()))
        return Framing(size=self.size, crop=self.crop, place=place, bits=self.bits)

    def _check_crop(self) -> None:
        crop = self.crop
        if isinstance(crop, tuple):
            if len(crop) != 4 or min(crop[:2]) < 0 or min(crop[2:]) < 1:
                raise InvalidRuntime(
                    f"video(crop={crop}): (top, left, height, width) in px, inside the frame",
                    what="crop",
                    given=crop,
                    accepted="(top, left, height, width) in px, inside the frame",
                )
        elif crop not in (None, "center", "random"):
            raise InvalidRuntime(
                f"video(crop={crop!r}): 'center', 'random', (top, left, height, width) or None",
                what="crop",
                given=crop,
                accepted="'center', 'random', (top, left, height, width) or None",
            )
        elif crop is not None and self.size is None:
            raise InvalidRuntime(
                f"video(crop={crop!r}) needs size=(height, width): what to cut to",
                what="size",
                given=self.size,
                accepted="(height, width), for a crop",
            )


class RunDecoder(VideoDecoder):
    """Decoder of a run without its packet table; always fails."""

    def __call__(self, data: Buffer, rng: np.random.Generator | None = None) -> np.ndarray:
        """Raise DecodeFailed."""
        raise DecodeFailed(
            f"video: a run ({len(data)} bytes) has no container, and nothing is known of its packets without the field "
            f"<field>{SUFFIX} of its sample: select it too, or decode with VideoDecoder.of_run",
            what=f"<field>{SUFFIX}",
            given=len(data),
        )


def is_run(field: str) -> bool:
    return last_word(field) == "run"


def choose(
    decoders: Mapping[str, VideoDecoder],
    timelines: Mapping[str, Timeline],
    rngs: Mapping[str, np.random.Generator | None],
) -> dict[str, Choice]:
    """Return field -> choice for one sample's video fields: leaders first, then followers. Raises: DecodeFailed."""
    frames: dict[str, list[int]] = {}
    for name, decoder in decoders.items():
        if decoder.leader is None:
            followers = [timelines[other] for other, one in decoders.items() if one.leader == name]
            among = None
            if followers:
                among = common_span(timelines[name], followers)
            frames[name] = decoder.choose_frames(timelines[name], rngs[name], among)
    for name, decoder in decoders.items():
        if decoder.leader is not None:
            clock = timelines[decoder.leader]
            timeline = timelines[name]
            frames[name] = [timeline.frame_number(clock.time_s(frame)) for frame in frames[decoder.leader]]
    return {
        name: Choice(
            frames[name],
            decoder.framing(rngs[name]),
            [float(timelines[name].time_s(frame)) for frame in frames[name]] if decoder.times else [],
        )
        for name, decoder in decoders.items()
    }


def common_span(leader: Timeline, followers: Sequence[Timeline]) -> tuple[int, int]:
    """Return the leader's frame range [first, stop) during which every follower also shows something."""
    if not all(map(len, (leader, *followers))):
        return 0, 0
    first = leader.next_frame_number(max(one.begin_s for one in followers))
    return first, max(first, leader.next_frame_number(min(one.end_s for one in followers)))


def video(
    frames: SupportsIndex | None = None,
    stride: SupportsIndex = 1,
    size: GivenSize = None,
    start: SupportsIndex | None = None,
    at: Time | Sequence[Time] | str | None = None,
    crop: str | tuple[SupportsIndex, SupportsIndex, SupportsIndex, SupportsIndex] | None = None,
    times: bool = False,
    bits: Bits | None = None,
) -> VideoDecoder:
    """Return a decoder for a video field: `Loader(plan, decode={"mp4": loader.video(frames=16, stride=2)})`.

    Returns uint8 [T, H, W, 3] RGB, upright: `frames` frames (16), every `stride`-th displayed frame. Colour of 10 or
    12 bits, HDR too, is rounded to 8 unless bits=16. Gray of more than 8 bits is data, such as depth: it stays as
    stored, uint16 [T, H, W, 1], scaled by nearest neighbour, unless bits=8. The frames begin at

    - start: the first frame's number in display order; or
    - at: the time in seconds, on the video's own clock, of the first frame; or
    - neither: a uniform draw from every start at which the clip fits (without a generator: frame 0).

    at may be several times, in any order, for the frame shown at each (without `frames` and `stride`). The frame shown
    at t is the last one with a timestamp of at most t. Times before the first frame or after the end of the last raise.
    Integers and fractions are exact. A float may be 1 us before its frame; numpy.float32 is too coarse and raises.

    at may name another video field of the sample. The result has the frames shown at that field's frame times, whatever
    the frame rates. A random draw then considers only times at which all these fields show something. Their timestamps
    must share one clock.

    - size: (height, width) in px of the result; None for the stored size. A bucket's name, such as "w640h384f32" (width
      first), also sets 32 frames unless `frames` or `at` is given.
    - crop: None stretches the frame to `size`. "center" and "random" scale it until it just covers `size`, and cut the
      excess: evenly, or at a random position (one per clip). A box (top, left, height, width) of the upright stored
      frame is scaled to `size`, if given. Its top and left must be even if colour is stored per 2 x 2 px.
    - times: adds the field `<field>.times` to a batch: float64 [T], seconds at which each frame is first shown.
    - bits: 8 gives uint8 RGB of any video. 16 gives colour as uint16 RGB, 0 to 65,535. Floats are refused.

    Raises: InvalidRuntime.
    """
    try:
        places = _times(at)
        if isinstance(places, tuple | str) and (frames is not None or stride != 1):
            text = f"video(at={at!r}, frames={frames!r}, stride={stride!r}): at names the frames; leave the others out"
            raise InvalidRuntime(text, what="at", given=at, accepted="at without frames and stride")
        return VideoDecoder(
            frames=_n_frames(frames, places, size),
            stride=operator.index(stride),
            size=parse_size(size),
            start=None if start is None else operator.index(start),
            at=places,
            crop=_crop(crop),
            times=bool(times),
            bits=bits,
        )
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidRuntime):
            raise
        call = (frames, stride, size, start, at, crop, bits)
        message = f"video({', '.join(map(repr, call))}): {error}"
        raise InvalidRuntime(message, what="video()", given=call) from error


def _n_frames(frames: SupportsIndex | None, places: At, size: GivenSize) -> int:
    if frames is not None:
        return operator.index(frames)
    if isinstance(places, tuple):
        return len(places)
    return parse_frames(size) or DEFAULT_FRAMES


def _times(at: Any) -> At:
    if at is None or isinstance(at, str):
        return at
    if np.ndim(at) == 0:
        return _time(at)
    times = tuple(_time(one) for one in at)
    if not times:
        raise ValueError("at needs at least one time")
    return times


def _time(value: Any) -> Time:
    if isinstance(value, Fraction):
        return value
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return operator.index(value)
    if isinstance(value, float):  # true for numpy.float64, not for numpy.float32
        if not isfinite(value):
            raise ValueError(f"{value!r} is no time")
        return float(value)
    raise TypeError(
        f"a time is an int, a float of 64 bits or a Fraction, in seconds; got {type(value).__name__} {value!r}"
    )


def _crop(crop: Any) -> str | Box | None:
    if crop is None or isinstance(crop, str):
        return crop
    numbers = tuple(map(operator.index, crop))
    if len(numbers) != 4:
        raise TypeError("crop is 'center', 'random' or (top, left, height, width) in px")
    return numbers


DEFAULT = video()
DEFAULT_8 = video(bits=8)
RUN = RunDecoder()
