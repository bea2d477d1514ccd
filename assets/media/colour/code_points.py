"""The colour code points (ITU-T H.273) of photos whose formats have them: PNG's cICP, HEIC's and AVIF's nclx."""

from typing import TYPE_CHECKING

from loader.modalities.video.mp4 import check_tables_of

from .file_parts import png_parts

if TYPE_CHECKING:
    from PIL.Image import Image

_UNSPECIFIED = 2


def code_points_of(image: "Image", path: str) -> tuple[int, int] | None:
    """Return (primaries, transfer) of ITU-T H.273 of the opened image at `path`; None without any.

    From PNG's cICP, HEIC's or AVIF's nclx. Raises: BrokenParts for a damaged PNG.
    """
    points: tuple[int, int] | None = None
    if image.format == "PNG":
        points = _of_png(path)
    elif image.format == "HEIF":
        profile = image.info.get("nclx_profile")
        if isinstance(profile, dict):
            points = (int(profile["color_primaries"]), int(profile["transfer_characteristics"]))
    elif image.format == "AVIF":
        points = _of_avif(path)
    return None if points == (_UNSPECIFIED, _UNSPECIFIED) else points


def _of_png(path: str) -> tuple[int, int] | None:
    with open(path, "rb") as file:
        data = file.read()
    for part in png_parts(data):
        if part.name == "cICP" and len(part.body) == 4:
            return part.body[0], part.body[1]
        if part.name == "IDAT":
            break
    return None


def _of_avif(path: str) -> tuple[int, int] | None:
    """Return them as FFmpeg reads them from the container or the AV1 stream: Pillow does not expose them."""
    import av
    from av.error import FFmpegError

    try:
        with open(path, "rb") as file:
            check_tables_of(file)
        with av.open(path, format="mov", options={"protocol_whitelist": "file"}) as container:
            codec = container.streams.video[0].codec_context
            return int(codec.color_primaries), int(codec.color_trc)
    except (FFmpegError, LookupError, ValueError):
        return None
