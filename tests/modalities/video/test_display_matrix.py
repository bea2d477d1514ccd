"""What comes with frames: never overlooked because one kind of it is new."""

import io

import av
from PIL import Image

from loader.errors import DecodeFailed
from loader.modalities.video.display_matrix import frame_matrix, frame_side_data
from tests.refusals import refusal


def test_kind_that_pyav_does_not_know_is_told():
    """FFmpeg 8 hands on EXIF, which PyAV 18 has no name for; it then shows nothing, an orientation included."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "maker"
    sink = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(sink, "AVIF", exif=exif.tobytes())
    with av.open(io.BytesIO(sink.getvalue())) as container:
        frame = next(container.decode(video=0))
        for read in (frame_side_data, frame_matrix):
            with refusal(DecodeFailed, what="side data") as caught:
                read(frame)
            assert "31" in str(caught.value.given)
