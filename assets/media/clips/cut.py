"""Cut videos: choose spans, write their clips, and collect each unit's fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..audio.decode import AudioTimeline, read_pieces
from ..audio.flac import write_flac
from ..container import PacketIndex, first_audio, first_video, index_packets, open_container
from ..cutters import NOTHING, Known
from ..policy import CutPolicy, VideoPolicy, image_bucket
from ..unit import CAPTION_FIELD, MetadataValue, Unit, at, rejected
from ..video.audit import audit_video
from ..video.spans import (
    PACKETS_FIELD,
    PACKETS_GROUP,
    Clip,
    ClipSpan,
    audit_cuts,
    segment_spans,
    shots,
    windows,
)
from .canonical import canonical_clips
from .early_clips import get_clips
from .reference import reference_clips

SOUND_FIELD, SOUND_GROUP = "sound.flac", "sound"

Columns = Mapping[str, MetadataValue]


def write_clip_audio(
    path: str,
    spans: Sequence[tuple[Fraction, Fraction]],
    targets: Sequence[Path],
    rate_hz: int,
) -> list[Columns]:
    """Write each span's mono audio, if it has any, and return each span's columns.

    spans: [start, end) in seconds on the container's clock. sound_missing_s: seconds that the source lacks.

    Raises: Unusable; StoreError if the disk is full.
    """
    rows: list[Columns] = [{"has_sound": False, "sound_missing_s": None} for _ in spans]
    with open_container(path) as container:
        stream = first_audio(container)
        if stream is None:
            return rows
        order = sorted(range(len(spans)), key=lambda place: spans[place][0])
        timeline = AudioTimeline(container, stream, rate_hz)
        pieces = read_pieces(timeline, [spans[place] for place in order], rate_hz)
        for place, (samples, n_real) in zip(order, pieces, strict=True):
            if n_real:
                gain_db = write_flac(targets[place], samples, rate_hz)
                missing_s = (samples.shape[1] - n_real) / rate_hz
                rows[place] = {"has_sound": True, "sound_missing_s": missing_s, "sound_gain_db": gain_db}
        if timeline.mix is None:
            return rows
        whole: Columns = {"sound_downmix": timeline.mix.name, "mono_cancels": timeline.mono_sum.cancels()}
    return [{**columns, **whole} if columns["has_sound"] else columns for columns in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Video:
    """Plan of a video's clips. facts: part of each clip's `json`."""

    index: PacketIndex
    spans: list[ClipSpan]
    facts: Mapping[str, Any]


def cut_video(
    path: str,
    scratch: Path,
    policy: CutPolicy,
    known: Known = NOTHING,
) -> list[Unit]:
    """Return units with the fields `mp4`, `mp4.packets` and `json`, which holds every frame's source pts.

    Units with audio also have `sound.flac`, of the clip's start and length; segments with a caption, `caption.txt`.
    Without an audit in `known`, the video is decoded to its end.

    Raises: Unusable if the video cannot be decoded, has no usable timestamps, or is excluded by the policy; StoreError.
    """
    if policy.video.units == "shots" and "scene_cuts" not in known.audit:
        known = replace(known, audit=audit_video(path, policy.video))
    index = _index(path, known.audit)
    video = _plan_clips(index, policy.video, known)
    # None: no frame begins in the span.
    clips = [clip for clip in _clips(path, video, scratch, policy.video, known) if clip is not None]
    sounds = _sounds(path, clips, index, policy.video, known)
    return [_unit(clip, video, sound, policy.video) for clip, sound in zip(clips, sounds, strict=True)]


def _index(path: str, audit: Mapping[str, Any]) -> PacketIndex:
    """Return the video's extent and packets, by its audit or else by its packets. Raises: Unusable."""
    if audit.get("end_pts") is not None:  # more precise: after a broken start some packets yield no frame
        return PacketIndex(
            n_packets=audit["n_packets"],
            start_pts=audit["start_pts"],
            end_pts=audit["end_pts"],
            time_base=(audit["time_base_num"], audit["time_base_den"]),
            max_gop_frames=audit["max_gop_frames"],
        )
    with open_container(path) as container:
        stream = first_video(container)
        if stream is None:
            raise rejected("probe", "no_streams", "the container has no video stream")
        return index_packets(container, stream)


def _sounds(
    path: str,
    clips: Sequence[Clip],
    index: PacketIndex,
    policy: VideoPolicy,
    known: Known,
) -> list[Columns]:
    """Write the audio of each clip beside it, and return its columns."""
    if known.audit.get("audio_error"):
        return [{"has_sound": False, "sound_missing_s": None} for _ in clips]
    base = Fraction(*index.time_base)
    spans = [(clip.pts[0] * base, clip.end * base) for clip in clips]
    targets = [clip.path.with_suffix(".flac") for clip in clips]
    return write_clip_audio(path, spans, targets, policy.sound_rate_hz)


def _plan_clips(index: PacketIndex, policy: VideoPolicy, known: Known) -> _Video:
    """Return the spans that the policy cuts, and the facts of each clip's `json`. Raises: Unusable."""
    facts: dict[str, Any] = {"time_base": list(index.time_base), "max_gop_frames": index.max_gop_frames}
    if policy.units == "windows":
        return _Video(
            index=index,
            spans=windows(index, policy),
            facts={**facts, "clip_s": policy.clip_s},
        )
    if policy.units == "segments":
        return _Video(
            index=index,
            spans=segment_spans(index, known.segments),
            facts=facts,
        )
    by_shot = shots(index, policy, audit_cuts(known.audit))
    counts = {"clip_s": policy.clip_s, "n_shots": by_shot.n_shots, "n_short_shots": by_shot.n_short}
    return _Video(index=index, spans=by_shot.spans, facts={**facts, **counts})


def _clips(
    path: str,
    video: _Video,
    scratch: Path,
    policy: VideoPolicy,
    known: Known,
) -> list[Clip | None]:
    """Return a clip per span, None for a span in which no frame begins. Raises: Unusable; StoreError."""
    index = video.index
    audit = known.audit
    if known.staging is not None:
        # Clips that an audit encoded, and stored until the cut.
        early = get_clips(known.staging, video.spans, (index.start_pts, index.end_pts), scratch)
        if early is not None and any(early):
            return early
    # Of each span: a clip by reference, or why it is re-encoded ("": the policy re-encodes all).
    results: list[Clip | str] = [""] * len(video.spans)
    if policy.mode == "reference":
        results = reference_clips(path, video.spans, index, scratch, policy, audit)
    clips: list[Clip | None] = []
    reasons: dict[int, str] = {}  # place of a span to re-encode -> why
    for place, result in enumerate(results):
        if isinstance(result, str):
            reasons[place] = result
            clips.append(None)
        else:
            clips.append(result)
    if reasons:
        spans = [video.spans[place] for place in reasons]
        encoded = canonical_clips(path, spans, index, scratch, policy, audit)
        for (place, reason), clip in zip(reasons.items(), encoded, strict=True):
            if clip is not None:
                clips[place] = replace(clip, mode_reason=reason)
    for clip, span in zip(clips, video.spans, strict=True):
        if clip is None and span.segment is not None:
            times = f"{span.segment.start_s} to {span.segment.end_s} s"
            raise rejected("cut", "segment", f"no frame begins in the segment from {times}")
    if not any(clips):
        raise rejected("decode", "no_frames", "no frame has a place in the stretches that are wanted")
    return clips


def _unit(clip: Clip, video: _Video, sound: Columns, policy: VideoPolicy) -> Unit:
    """Return the unit of a clip, with the audio file beside the clip's and its columns."""
    base = Fraction(*video.index.time_base)
    start = clip.pts[0]
    segment = clip.span.segment
    facts = {
        **video.facts,
        "pts": clip.pts,
        "end": clip.end,
        "policy": clip.mode,
        "wanted": list(clip.requested),
    }
    fields: dict[str, Any] = {"mp4": clip.path, PACKETS_FIELD: clip.packets}
    groups = {PACKETS_FIELD: PACKETS_GROUP}
    if sound["has_sound"]:
        fields[SOUND_FIELD] = clip.path.with_suffix(".flac")
        groups[SOUND_FIELD] = SOUND_GROUP
    metadata: dict[str, MetadataValue] = {
        "width_px": clip.size_px[0],
        "height_px": clip.size_px[1],
        "aspect_ratio": round(clip.size_px[0] / clip.size_px[1], 6),
        "bucket": image_bucket(policy.buckets, *clip.size_px, clip.requested[1]),
        "n_frames": len(clip.pts),
        "start_s": float(start * base),
        "duration_s": float((clip.end - start) * base),
        "clip_mode": clip.mode,
        "clip_mode_reason": clip.mode_reason,
        **clip.metadata,
        **sound,
    }
    request = ""
    if clip.span.shot is not None:
        facts["shot"] = metadata["shot"] = clip.span.shot
    if segment is not None:
        facts["segment"] = segment.plain()
        request = segment.request
        if segment.label:
            metadata["label"] = segment.label
        if segment.caption:
            fields[CAPTION_FIELD] = segment.caption
    return Unit(
        start=at(start, video.index.time_base),
        end=at(clip.end, video.index.time_base),
        fields={**fields, "json": facts},
        groups=groups,
        metadata=metadata,
        request=request,
    )
