"""Encode clips during the audit, which decodes every frame anyway.

They are stored in the root until the batch is cut, with the bytes that cutting would produce. If they are missing,
damaged or have other spans, the object is cut from its source.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from loader.dataset.log.entries import DAMAGED
from loader.errors import ObjectNotFound
from loader.json_text import parse_json_object

from ..container import PacketIndex, check_scratch
from ..cutters import ClipStaging
from ..policy import VideoPolicy
from ..segments import Segment
from ..unit import Unusable
from ..video.audit import SettledCuts
from ..video.spans import ClipSpan, given_spans, shots, windows
from ..video.timestamps import TimedFrame
from .canonical import ClipMaker, is_good_enough
from .clip import Clip
from .encoder import QUALITIES
from .shot_maker import ShotMaker, TooLargeToBuffer

if TYPE_CHECKING:
    from av.video.stream import VideoStream

# Facts of the clips, and one file of all clips and packet tables, since objects cost more than bytes.
_FACTS, _PACK = "clips.json", "clips.bin"


class EarlyClips:
    """Frame watcher that encodes canonical clips during an audit. It stops at the first fault, which the cut reports.

    clips: result after `finish`. extent: the video's (first tick, end) from its packets.
    """

    def __init__(self, policy: VideoPolicy, segments: Sequence[Segment], scratch: Path) -> None:
        self.clips: list[Clip | None] = []
        self.extent = (0, 0)
        self._policy, self._segments, self._scratch = policy, segments, scratch
        self._index: PacketIndex | None = None
        self._maker: ClipMaker | ShotMaker | None = None

    def begin(self, stream: "VideoStream", index: PacketIndex, settled: SettledCuts) -> None:
        self.extent, self._index = (index.start_pts, index.end_pts), index
        if self._policy.mode != "canonical":
            return
        work = (index, self._scratch, self._policy, stream, QUALITIES[0])
        if self._policy.units != "shots":
            spans = self._spans(index, ())
            self._maker = ClipMaker(spans, *work) if spans else None
        elif self._policy.max_clips is None:  # otherwise choosing clips needs all shots
            self._maker = ShotMaker(*work, settled)

    def add(self, timed: TimedFrame) -> None:
        import av

        if self._maker is None:
            return
        try:
            self._maker.add(timed)
        except (Unusable, TooLargeToBuffer, av.error.FFmpegError) as error:
            self.abandon()
            check_scratch(error, self._scratch)

    def finish(self, cuts: Sequence[int]) -> None:
        import av

        if self._maker is None or self._index is None:
            return
        try:
            if isinstance(self._maker, ShotMaker):
                clips = self._maker.finish(cuts, self._spans(self._index, cuts)) or []
            else:
                clips = self._maker.finish()
        except (Unusable, TooLargeToBuffer, av.error.FFmpegError) as error:
            self.abandon()
            check_scratch(error, self._scratch)
            return
        self.clips = clips if is_good_enough(clips) else []

    def abandon(self) -> None:
        """Close all open clips."""
        maker, self._maker = self._maker, None
        if maker is not None:
            maker.abandon()

    def _spans(self, index: PacketIndex, cuts: Sequence[int]) -> list[ClipSpan]:
        try:
            if self._policy.units == "windows":
                return windows(index, self._policy)
            if self._policy.units == "segments":
                return given_spans(index, self._segments)
            return shots(index, self._policy, cuts).spans
        except Unusable:
            return []


def put_clips(
    staging: ClipStaging, clips: Sequence[Clip | None], extent: tuple[int, int], scratch: Path
) -> None:
    """Upload the clips, then their facts, and delete their files.

    extent: the video's (first tick, end). Raises: StoreError; OSError.
    """
    pack = scratch / f"clip-{_PACK}"
    with open(pack, "wb") as out:
        facts = [None if clip is None else _packed(clip, out) for clip in clips]
    staging.store.put_file(f"{staging.key}/{_PACK}", str(pack))
    pack.unlink()
    body = {"extent": list(extent), "clips": facts}
    staging.store.put(f"{staging.key}/{_FACTS}", json.dumps(body).encode())


def _packed(clip: Clip, out: BinaryIO) -> Mapping[str, Any]:
    offset = out.tell()
    files = [clip.path, clip.packets]
    bodies = [file.read_bytes() for file in files]
    out.writelines(bodies)
    for file in files:
        file.unlink()
    return {
        "span": [clip.span.start, clip.span.end, clip.span.shot],
        "pts": clip.pts,
        "end": clip.end,
        "size_px": list(clip.size_px),
        "metadata": dict(clip.metadata),
        "offset": offset,
        "nbytes": [len(body) for body in bodies],
        "sha256": [_sha256(body) for body in bodies],
    }


def get_clips(
    staging: ClipStaging, spans: Sequence[ClipSpan], extent: tuple[int, int], scratch: Path
) -> list[Clip | None] | None:
    """Download clips to scratch; None unless all match the spans and extent and are intact.

    Raises: StoreError if the store does not respond; OSError.
    """
    try:
        stored = parse_json_object(staging.store.get(f"{staging.key}/{_FACTS}").data)
        facts = stored["clips"]
        if stored["extent"] != list(extent) or len(facts) != len(spans):
            return None
        return [
            None if clip is None else _clip(staging, place, clip, span, scratch)
            for place, (clip, span) in enumerate(zip(facts, spans, strict=True))
        ]
    except (ObjectNotFound, *DAMAGED):
        return None


def _clip(staging: ClipStaging, place: int, facts: Mapping[str, Any], span: ClipSpan, scratch: Path) -> Clip:
    if facts["span"] != [span.start, span.end, span.shot]:
        raise ValueError("a clip of another span")
    target = scratch / f"clip-{place:04d}.mp4"
    packets = target.with_suffix(".packets")
    n_mp4, n_packets = facts["nbytes"]
    body = memoryview(
        staging.store.get_range(f"{staging.key}/{_PACK}", facts["offset"], n_mp4 + n_packets).data
    )
    for file, data, sha256 in zip(
        (target, packets), (body[:n_mp4], body[n_mp4:]), facts["sha256"], strict=True
    ):
        if _sha256(data) != sha256:
            raise ValueError("its SHA-256 differs")
        file.write_bytes(data)
    return Clip(
        path=target,
        packets=packets,
        span=span,
        pts=[int(pts) for pts in facts["pts"]],
        end=int(facts["end"]),
        size_px=(int(facts["size_px"][0]), int(facts["size_px"][1])),
        requested=(0, len(facts["pts"])),
        mode="canonical",
        metadata=facts["metadata"],
    )


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
