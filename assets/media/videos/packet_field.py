"""The packet table that lies beside every clip."""

from pathlib import Path

from loader.errors import DecodeFailed
from loader.modalities.packets import index_packets

from ..unit import rejected

PACKETS_FIELD, PACKETS_GROUP = "mp4.packets", "media_index"


def write_packets(mp4: Path) -> Path:
    """The file with the packet table of a clip, beside the clip.

    Raises: Unusable, for a clip that a loader could not read; OSError of the scratch disk.
    """
    target = mp4.with_suffix(".packets")
    try:
        target.write_bytes(index_packets(mp4.read_bytes()))
    except DecodeFailed as error:
        raise rejected("cut", "unreadable_clip", error) from error
    return target
