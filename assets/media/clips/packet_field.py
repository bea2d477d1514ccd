"""The packet table that lies beside every clip."""

from pathlib import Path

from loader.errors import DecodeFailed
from loader.modalities.video.packet_table import StreamFacts, index_packets, read_packets

from ..unit import rejected

PACKETS_FIELD, PACKETS_GROUP = "mp4.packets", "media_index"


class PacketTables:
    """Writer of the tables of clips that were made in one way.

    Pictures are compared in the first clip, and in every clip of which a decoder is told something else.
    """

    def __init__(self) -> None:
        self._tried: StreamFacts | None = None

    def write(self, mp4: Path) -> Path:
        """Write the packet table of a clip beside it, and return the file.

        Raises: Unusable, for a clip that a loader could not read; OSError of the scratch disk.
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
