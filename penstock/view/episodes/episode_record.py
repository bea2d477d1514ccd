"""The record of an episode's page with its lanes, and of one moment of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from loader.errors import Corrupt, InvalidRuntime
from loader.modalities.fields import last_word, load
from loader.modalities.video.request import is_run

from ...text import clean
from ..inspect.sample_record import SampleRecord, sample_record
from ..inspect.sample_slices import SliceSearch
from ..json_record import JsonRecord
from ..sample_relations import RunSearch
from .bands import EpisodeSpan, fault_spans, keep_spans, language_spans
from .cursor_facts import farthest_text, row_text, track_text
from .lanes import Lane, stream_lanes
from .open_episode import VIDEO_WORDS, Camera, EpisodeStream, OpenEpisode

MAX_STEP = 10**6
"""Most rows or frames per step of the cursor."""
QUALITY = ("clock_skew_ns", "n_gaps", "longest_gap_ns", "idle_ratio", "n_frozen")
"""Columns about an episode's clocks."""
CODECS = {"libdav1d": "av1", "libvpx-vp9": "vp9", "libvpx": "vp8"}
"""FFmpeg's decoder -> codec, where the names differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTrack(JsonRecord):
    """A stream or a camera."""

    field: str
    """Field name."""
    name: str
    """As many last words of the field as are unique."""
    n_values: int
    """Rows or frames."""
    format: str
    """Dtype and shape, or codec and size."""
    clock: str
    """Its clock's field, "container", or "" for steps."""
    rate: str
    """Values per second by the median period, or ""."""
    error: str
    """Why it is not shown, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord(JsonRecord):
    """An episode."""

    sample: SampleRecord
    """Fields without values, columns, provenance and edits."""
    task: str
    """Task text, or ""."""
    unit: str
    """"s" for time, "step" for rows."""
    origin_ns: int
    """Axis's start on the episode's clock."""
    length_ns: int
    """Length in ns or steps."""
    anchor: str
    """Stream whose rows are counted, or ""."""
    n_rows: int
    """The anchor's rows."""
    cameras: tuple[EpisodeTrack, ...]
    """Videos and arrays of images."""
    streams: tuple[EpisodeTrack, ...]
    """Streams of numbers."""
    lanes: tuple[Lane, ...]
    """Groups of dimensions."""
    n_undrawn: int
    """Dimensions without a lane."""
    language: tuple[EpisodeSpan, ...]
    """Language lines, or the task."""
    keep: tuple[EpisodeSpan, ...]
    """Rows that `keep.npy` keeps."""
    n_keep: int
    """Such rows; -1 without `keep.npy`."""
    faults: tuple[EpisodeSpan, ...]
    """Gaps of clocks, and frozen frames."""
    quality: Mapping[str, str]
    """Columns about clocks -> value."""
    errors: Mapping[str, str]
    """Field that cannot be shown -> why."""


def episode_record(
    episode: OpenEpisode,
    anchor: str = "",
    slices: SliceSearch | None = None,
) -> EpisodeRecord:
    """Return the record. anchor: stream whose rows are counted. slices: as in `sample_record`.

    Raises: InvalidRuntime; StoreError.
    """
    version = episode.version
    ordinal = episode.address.ordinal
    sample = sample_record(version, ordinal, RunSearch(), slices, decode=False)
    anchor = episode.anchor(anchor)
    errors = dict(episode.errors)
    language, trouble = language_spans(episode, sample.columns)
    if trouble:
        errors["language"] = trouble
    keep, n_keep, trouble = keep_spans(episode, anchor)
    if trouble:
        errors["keep"] = trouble
    faults, trouble = fault_spans(episode)
    if trouble:
        errors["faults"] = trouble
    shown = {*episode.streams, *episode.cameras, *episode.errors}
    # In the order of the sample's fields, whichever kind they are.
    names = [name for name in episode.names if name in shown]
    lanes, n_undrawn = stream_lanes(
        {name: one for name, one in episode.streams.items() if name not in episode.errors}
    )
    tracks = {name: _track(episode, name, names) for name in names}
    return EpisodeRecord(
        sample=sample,
        task=next((one.text for one in language if one.kind == "task"), ""),
        unit="step" if episode.is_steps else "s",
        origin_ns=episode.origin_ns,
        length_ns=episode.length_ns,
        anchor=anchor,
        n_rows=episode.n_values(anchor) if anchor else 0,
        cameras=tuple(one for name, one in tracks.items() if _is_camera(episode, name)),
        streams=tuple(one for name, one in tracks.items() if not _is_camera(episode, name)),
        lanes=lanes,
        n_undrawn=n_undrawn,
        language=language,
        keep=keep,
        n_keep=n_keep,
        faults=faults,
        quality={name: sample.columns[name] for name in QUALITY if name in sample.columns},
        errors={clean(name, 200): text for name, text in errors.items()},
    )


def _is_camera(episode: OpenEpisode, name: str) -> bool:
    return name in episode.cameras or last_word(name) in VIDEO_WORDS


def _track(episode: OpenEpisode, name: str, names: Collection[str]) -> EpisodeTrack:
    camera = episode.cameras.get(name)
    stream = episode.streams.get(name)
    known = camera is not None or stream is not None
    return EpisodeTrack(
        field=name,
        name=_short(name, names),
        n_values=episode.n_values(name) if known else 0,
        format=_format(camera, stream),
        clock=episode.clock_names.get(name, ""),
        rate=_rate(episode, name),
        error=episode.errors.get(name, ""),
    )


def _short(name: str, names: Collection[str]) -> str:
    words = name.split(".")[:-1]
    others = [one.split(".")[:-1] for one in names if one != name]
    # Fewest last words that no other field shares: cameras differ in "wrist" or "top", seldom at the end.
    n = next((n for n in range(1, len(words)) if all(one[-n:] != words[-n:] for one in others)), len(words))
    return clean(".".join(words[-n:]), 80)


def _format(camera: Camera | None, stream: EpisodeStream | None) -> str:
    if camera is not None:
        width, height = camera.size
        codec = CODECS.get(camera.codec, camera.codec)
        pix_fmt = "" if camera.table is None else camera.table.facts.pix_fmt
        is_deep = pix_fmt.startswith("gray") and load("video.frame_pixels:is_deep_gray")(pix_fmt)
        shown = f", {pix_fmt}, each frame shown from its least to its largest value" if is_deep else ""
        return f"{codec} {width} x {height}{shown}"
    if stream is not None:
        return f"{stream.layout.dtype} {list(stream.layout.shape)}"
    return ""


def _rate(episode: OpenEpisode, name: str) -> str:
    clock = episode.clocks.get(name)
    if clock is None or len(clock) < 2:
        return ""
    return f"{1e9 / float(np.median(np.diff(clock))):.4g} Hz"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackMoment(JsonRecord):
    """A field's value in a window."""

    field: str
    """Field name."""
    number: int = -1
    """Row or frame, -1 if there is none."""
    text: str = ""
    """Number, container time, age and padding in words; "" if there is none."""
    age_ns: int | None = None
    """Time since the value's; None for steps."""
    is_pad: bool = False
    """True outside of the episode."""
    first_ns: int = 0
    """When the value began, after the axis's start."""
    pts_s: float | None = None
    """Frame's time in its container, s; or None."""
    shown_s: tuple[float, float] | None = None
    """Frame's begin and end in the played file, s; or None."""
    values: tuple[float | int | bool, ...] = ()
    """Up to 512 values; empty for cameras."""
    error: str = ""
    """Why there is no value, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorMoment(JsonRecord):
    """A window at an instant: each field's value by the rule `last`."""

    at_ns: int
    """Time, ns (or steps) after the axis's start."""
    clock_ns: str
    """Time on the episode's clock, as digits: a browser's numbers end at 2^53."""
    anchor: str
    """Stream whose rows are counted, or ""."""
    row: int
    """Anchor's row in force, -1 before the first."""
    tracks: tuple[TrackMoment, ...]
    """Streams and cameras."""
    facts: tuple[tuple[str, str], ...]
    """(name, text): row, time, each field, and the largest distance between an action and its state."""


def moment(episode: OpenEpisode, at_ns: int, anchor: str = "") -> CursorMoment:
    """Return what the loader takes at a time. Reads one row per stream. Raises: InvalidRuntime."""
    # The address of a page may name any time.
    at_ns = min(max(0, at_ns), episode.length_ns)
    anchor = episode.anchor(anchor)
    fields = list(dict.fromkeys((*episode.streams, *episode.cameras, *episode.errors)))
    names = [name for name in fields if name not in episode.errors]
    row = episode.row_number(anchor, at_ns) if anchor else -1
    clock_ns = episode.origin_ns + at_ns
    tracks = tuple(_moment(episode, name, at_ns, anchor) for name in names)
    facts = [("row", row_text(row, _short(anchor, fields) if anchor else ""))]
    if not episode.is_steps:
        facts.append(("time", f"{clock_ns:,} ns"))
    facts += [(_short(track.field, fields), track.error or track.text) for track in tracks]
    lanes, _ = stream_lanes({name: one for name, one in episode.streams.items() if name in names})
    farthest = farthest_text(lanes, {track.field: track.values for track in tracks})
    if farthest:
        facts.append(("action \N{MINUS SIGN} state, largest", farthest))
    return CursorMoment(
        at_ns=at_ns,
        clock_ns=str(clock_ns),
        anchor=anchor,
        row=row,
        tracks=tracks,
        facts=tuple(facts),
    )


def step_time(episode: OpenEpisode, at_ns: int, field: str, by: int) -> int:
    """Return the time of the row or frame that is `by` after the one at `at_ns`. Raises: InvalidRuntime."""
    known = field in episode.streams or field in episode.cameras
    if not known or field in episode.errors or not episode.has_times(field) or abs(by) > MAX_STEP:
        raise InvalidRuntime(
            f"step {by} of {field!r:.100}; accepted: -{MAX_STEP} to {MAX_STEP} rows or frames of a field with times",
            what="step",
            where=field,
            given=by,
            accepted=[-MAX_STEP, MAX_STEP],
        )
    return min(max(0, episode.time_of(field, episode.row_number(field, at_ns) + by)), episode.length_ns)


def _moment(episode: OpenEpisode, name: str, at_ns: int, anchor: str) -> TrackMoment:
    try:
        picked = episode.pick(name, at_ns, anchor)
        number = int(picked.number[0])
        values = plain_values(episode.row(name, number)) if name in episode.streams else ()
    except Corrupt as error:
        return TrackMoment(field=name, error=clean(error, 400))
    pts_s, shown_s = _container(episode, name, number)
    age_ns = None if picked.age_ns is None else int(picked.age_ns[0])
    is_pad = bool(picked.is_pad[0])
    is_camera = name in episode.cameras
    return TrackMoment(
        field=name,
        number=number,
        text=track_text(number, is_camera=is_camera, pts_s=pts_s, age_ns=age_ns, is_pad=is_pad),
        age_ns=age_ns,
        is_pad=is_pad,
        first_ns=episode.time_of(name, number),
        pts_s=pts_s,
        shown_s=shown_s,
        values=values,
    )


def plain_values(row: np.ndarray) -> tuple[float | int | bool, ...]:
    """Return Python numbers."""
    values: list[float | int | bool] = row.tolist()
    return tuple(values)


def _container(
    episode: OpenEpisode, name: str, number: int
) -> tuple[float | None, tuple[float, float] | None]:
    camera = episode.cameras.get(name)
    if camera is None or camera.timeline is None:
        return None, None
    timeline = camera.timeline
    first = timeline.time_s(number)
    end = timeline.time_s(number + 1) if number + 1 < len(timeline) else timeline.end_s
    zero = timeline.begin_s if is_run(name) else 0  # the mp4 of a run begins at 0
    return float(first), (float(first - zero), float(end - zero))
