"""A check that an MP4's samples are all there: FFmpeg reads a truncated one as a shorter one."""

from typing import TYPE_CHECKING

from ...errors import DecodeFailed

if TYPE_CHECKING:
    import av


def check_complete(stream: "av.AudioStream | av.VideoStream", nbytes: int) -> None:
    """Accept a demuxed stream whose sample table lies within a file of `nbytes` bytes.

    The table is compared, not the number of packets: samples that an edit list leaves out are in neither.

    Raises: DecodeFailed.
    """
    end = max((entry.pos + entry.size for entry in stream.index_entries), default=0)
    if end > nbytes:
        raise DecodeFailed(
            f"{stream.type}: truncated: its samples reach to byte {end}, the file ends at {nbytes}"
        )
