"""Packet table of a clip."""

from pathlib import Path

from loader.errors import DecodeFailed
from loader.modalities.video.packet_table import StreamFacts, index_packets, read_packets

from ..unit import rejected

PACKETS_FIELD, PACKETS_GROUP = "mp4.packets", "media_index"


class PacketTables:
    """Writes the packet tables of clips that were encoded alike.

    Test decodes run for the first clip, and for clips with other decoder settings.
    """

    def __init__(self) -> None:
        self._tried: StreamFacts | None = None

    def write(self, mp4: Path) -> Path:
        """Write a clip's packet table next to it, and return its path.

        Raises: Unusable for a clip that a loader could not read; OSError of the scratch disk.
        """
        target = mp4.with_suffix(".packets")
        try:
            table = index_packets(mp4.read_bytes(), self._tried)
        except DecodeFailed as error:
            raise rejected("cut", "unreadable_clip", error) from error
        target.write_bytes(table)
        if self._tried is None:
            self._tried = read_packets(table).facts
        return target
