"""Videos: one sequential decode of the whole file, the chosen clips re-encoded on the way, timestamps kept.

A clip whose span has sound carries it as `sound.flac`, in a group of its own: one channel at the policy's rate,
its first sample at the clip's first frame, as long as the clip. See `clip_encoder` for the picture.
"""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from loader.modalities.heard import Floats

from .clip_encoder import MIN_PSNR_DB, QUALITIES, ClipEncoder
from .colour import refuse_deep
from .container import PacketIndex, first_sound, index_packets, moving_picture, opened
from .flac import write_flac
from .policy import CutPolicy, VideoPolicy
from .scratch import check_scratch
from .sound import Timeline, pieces_at
from .timestamps import shown
from .unit import Unit, at, rejected

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

SOUND_FIELD, SOUND_GROUP = "sound.flac", "sound"


def cut_video(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """Units with the fields `mp4`, `json` (source pts of every frame) and, where there is sound, `sound.flac`.

    Raises: Unusable for a file that cannot be opened, decoded to its end, has no usable timestamps, or is HDR
    or deeper than 8 bits.
    """
    with opened(path) as container:
        stream = moving_picture(container)
        if stream is None:
            raise rejected("probe", "no_streams", "the container has no video stream")
        index = index_packets(container, stream)
    for quality in QUALITIES:
        with opened(path) as container:
            stream = moving_picture(container)
            assert stream is not None  # the same file, a moment later
            clips = _encode_clips(
                container, stream, windows(index, policy.video), scratch, policy.video, quality
            )
        if min(clip.fidelity().worst_db for clip in clips) >= MIN_PSNR_DB:
            break
    else:
        raise rejected("cut", "psnr", f"no encoding of it has {MIN_PSNR_DB:.0f} dB in every frame")
    sounds = _sounds(path, [_span_s(clip, index) for clip in clips], policy.video.sound_rate_hz)
    return [_unit(clip, sound, index, policy.video) for clip, sound in zip(clips, sounds, strict=True)]


def windows(index: PacketIndex, policy: VideoPolicy) -> list[tuple[int, int]]:
    """[start, end) of each clip in ticks: whole clips end to end, or `max_clips` of them evenly spread.

    A video shorter than one clip is one clip; what is left behind the last whole clip is not taken.
    """
    ticks = max(1, round(policy.clip_s / Fraction(*index.time_base)))
    possible = max(1, (index.end_pts - index.start_pts) // ticks)
    n_clips = min(policy.max_clips, possible)
    starts = [index.start_pts + (clip * possible // n_clips) * ticks for clip in range(n_clips)]
    return [(start, start + ticks) for start in starts]


def _encode_clips(
    container: "InputContainer",
    stream: "VideoStream",
    spans: list[tuple[int, int]],
    scratch: Path,
    policy: VideoPolicy,
    quality: Mapping[str, str],
) -> list[ClipEncoder]:
    """Decode everything, in order; frames inside a span go to that span's clip. Raises: Unusable."""
    import av

    stream.thread_count = 1
    clips: list[ClipEncoder] = []
    waiting = list(reversed(spans))
    current: ClipEncoder | None = None
    n_frames, last_pts = 0, None
    try:
        for frame, _, pts in shown(container, container.decode(stream)):
            if not n_frames:
                refuse_deep(frame)
            n_frames += 1
            if frame.is_corrupt:
                raise rejected("decode", "corrupt", f"frame {n_frames - 1} is damaged")
            if last_pts is not None and pts <= last_pts:
                continue  # shown at the same moment as the frame before: no place in a timeline
            last_pts = pts
            if current is not None and pts >= current.span[1]:
                current.finish()
                current = None
            while waiting and current is None and pts >= waiting[-1][0]:
                span = waiting.pop()
                if pts < span[1]:
                    target = scratch / f"clip-{len(clips):04d}.mp4"
                    current = ClipEncoder(target, span, stream, policy, quality)
                    clips.append(current)
            if current is not None:
                current.add(frame, pts)
        if current is not None:
            current.finish()
    except av.error.FFmpegError as error:
        check_scratch(error, scratch)
        raise rejected("decode", "undecodable", f"after frame {n_frames}: {error.strerror}") from error
    finally:
        for clip in clips:
            clip.abandon()
    if not clips:
        raise rejected("decode", "no_frames", f"{n_frames} frames decoded, none with a place in time")
    return clips


def _span_s(clip: ClipEncoder, index: PacketIndex) -> tuple[Fraction, Fraction]:
    """From the clip's first frame to the end of its last, on the container's clock."""
    base = Fraction(*index.time_base)
    return clip.pts[0] * base, _end(clip, index) * base


def _end(clip: ClipEncoder, index: PacketIndex) -> int:
    return max(clip.pts[-1] + 1, min(clip.span[1], index.end_pts))


def _sounds(
    path: str, spans: list[tuple[Fraction, Fraction]], rate_hz: int
) -> list[tuple[Floats, int] | None]:
    """The sound of each span and how much of it is real; None where there is none. Raises: Unusable."""
    with opened(path) as container:
        stream = first_sound(container)
        if stream is None:
            return [None] * len(spans)
        timeline = Timeline(container, stream, rate_hz)
        found = list(pieces_at(timeline, spans, rate_hz))
    return [piece if piece[1] else None for piece in found]


def _unit(
    clip: ClipEncoder, sound: tuple[Floats, int] | None, index: PacketIndex, policy: VideoPolicy
) -> Unit:
    base = Fraction(*index.time_base)
    start, end = clip.pts[0], _end(clip, index)
    fidelity = clip.fidelity()
    facts = {"time_base": list(index.time_base), "pts": clip.pts, "max_gop_frames": index.max_gop_frames}
    fields = {"mp4": clip.path, "json": {**facts, "policy": "canonical", "clip_s": policy.clip_s}}
    if sound is not None:
        path = clip.path.with_suffix(".flac")
        write_flac(path, sound[0], policy.sound_rate_hz)
        fields[SOUND_FIELD] = path
    return Unit(
        start=at(start, index.time_base),
        end=at(end, index.time_base),
        fields=fields,
        groups={SOUND_FIELD: SOUND_GROUP} if sound is not None else {},
        metadata={
            "width_px": clip.size_px[0],
            "height_px": clip.size_px[1],
            "n_frames": len(clip.pts),
            "start_s": float(start * base),
            "duration_s": float((end - start) * base),
            "psnr_db": round(fidelity.psnr_db, 3),
            "worst_psnr_db": round(fidelity.worst_db, 3),
            "has_sound": sound is not None,
            "sound_missing_s": None if sound is None else (sound[0].shape[1] - sound[1]) / policy.sound_rate_hz,
        },
    )
