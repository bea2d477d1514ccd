"""A video as an interrupted upload leaves it: it opens, its header promises everything, half of it is there."""

import tempfile
from pathlib import Path

import av


def plant_truncated(whole: Path, broken: Path) -> None:
    """Write the first half of the video of `whole` to `broken`.

    A stream copy puts the index in front: without an index a file would not even open.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as scratch:
        front = Path(scratch) / "front.mp4"
        with (
            av.open(str(whole)) as source,
            av.open(str(front), "w", format="mp4", options={"movflags": "faststart"}) as target,
        ):
            taken = source.streams.video[0]
            written = target.add_stream_from_template(taken)
            for packet in source.demux(taken):
                if packet.dts is not None:  # None: the empty packet at the end of a demuxed stream
                    packet.stream = written
                    target.mux(packet)
        content = front.read_bytes()
    broken.write_bytes(content[: len(content) // 2])
