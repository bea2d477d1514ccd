"""Known formats that are not supported, and files that are not media, whatever their name.

Three words: damaged (a decoder refuses the bytes), not supported (no decoder here, or a missing tail would not
show), not media (an error page instead of a photo).
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from .sniff import EMPTY, UNKNOWN
from .unit import not_media, not_supported

_TO_PNG = "store it as PNG or JPEG"
_TO_FLAC = "store it as FLAC: ffmpeg -i FILE out.flac"
_TO_MP4 = "put it into MP4 or Matroska: ffmpeg -i FILE -c copy out.mkv"
_TIMELESS = (
    "it has neither times nor a length; put it into MP4: ffmpeg -framerate RATE -i FILE -c copy out.mp4"
)
_ENCODE = "store it as MP4: ffmpeg -i FILE -c:v libx264 -crf 18 out.mp4"

NOT_SUPPORTED: Mapping[str, tuple[str, str]] = {
    "image/jp2": ("JPEG 2000", _TO_PNG),
    "image/jxl": ("JPEG XL", _TO_PNG),
    "image/x-tga": ("TGA", _TO_PNG),
    "image/x-portable-anymap": ("PPM, PGM, PBM or PAM", _TO_PNG),
    "image/vnd.adobe.photoshop": ("Photoshop", _TO_PNG),
    "image/x-icon": ("an icon", _TO_PNG),
    "image/x-exr": ("OpenEXR", _TO_PNG),
    "image/vnd.radiance": ("Radiance HDR", _TO_PNG),
    "image/vnd-ms.dds": ("DDS", _TO_PNG),
    "image/x-qoi": ("QOI", _TO_PNG),
    "image/svg+xml": ("SVG", _TO_PNG),
    "image/x-raw": ("a camera's raw format", "develop it, and store PNG or JPEG"),
    "audio/basic": ("AU", _TO_FLAC),
    "audio/midi": ("MIDI, which is notes and no sound", "render it"),
    "audio/x-ape": ("Monkey's Audio", _TO_FLAC),
    "audio/x-wavpack": ("WavPack", _TO_FLAC),
    "audio/x-tta": ("True Audio", _TO_FLAC),
    "audio/x-musepack": ("Musepack", _TO_FLAC),
    "audio/x-dsd": ("DSD", _TO_FLAC),
    "audio/vnd.dts": ("DTS", _TO_FLAC),
    "video/x-ivf": ("IVF", _TO_MP4),
    "video/h264": ("raw H.264", _TIMELESS),
    "video/h265": ("raw HEVC", _TIMELESS),
    "video/mpeg-es": ("raw MPEG video", _TIMELESS),
    "video/x-yuv4mpeg": ("YUV4MPEG", _ENCODE),
    "video/x-nut": ("NUT", _TO_MP4),
    "application/vnd.rn-realmedia": ("RealMedia", _ENCODE),
    "application/x-shockwave-flash": ("Flash", _ENCODE),
}
"""Type by content -> (name, what to do)."""

_MEDIA_SUFFIXES = frozenset((
    "jpg", "jpeg", "jpe", "jfif", "png", "webp", "tif", "tiff", "bmp", "gif", "avif", "heic", "heif", "jp2", "j2k",
    "jxl", "tga", "ppm", "pgm", "pbm", "pnm", "psd", "ico", "exr", "hdr", "dng", "cr2", "cr3", "nef", "arw", "raf",
    "orf", "rw2", "mp4", "m4v", "mov", "mkv", "webm", "avi", "flv", "mpg", "mpeg", "m2ts", "ogv", "wmv", "asf",
    "mxf", "dv", "3gp", "3g2", "ivf", "h264", "264", "h265", "265", "hevc", "vob", "wav", "flac", "mp3", "m4a",
    "m4b", "mka", "aac", "ogg", "oga", "opus", "amr", "aif", "aiff", "aifc", "caf", "wma", "w64", "ac3", "eac3",
    "au", "ape", "wv", "tta",
))  # fmt: skip
"""Suffixes of images, audio and video (not ts, which is also TypeScript)."""

_TEXT_SUFFIXES = frozenset((
    "txt", "md", "rst", "csv", "tsv", "json", "jsonl", "ndjson", "srt", "vtt", "ass", "ssa", "log", "xml", "yaml",
    "yml",
))  # fmt: skip
_HTML_SUFFIXES = frozenset(("html", "htm", "xhtml", "php", "asp", "aspx"))
_MAY_BE_MEDIA = frozenset((UNKNOWN, EMPTY, *NOT_SUPPORTED))


def check_supported(mime: str) -> None:
    """Check that a type is not a known unsupported format. Raises: Unusable."""
    if mime in NOT_SUPPORTED:
        name, advice = NOT_SUPPORTED[mime]
        raise not_supported("probe", "not_supported", f"{name} is not supported; {advice}")


def check_is_media(key: str, mime: str) -> None:
    """Check that an object's bytes match its name; the name decides nothing else.

    mime: by content.

    Raises: Unusable for a web page, for a text or archive named as media, for unknown bytes under another name.
    """
    suffix = PurePosixPath(key).suffix[1:].lower()
    name_text = (
        f"its name says {suffix}" if suffix in _MEDIA_SUFFIXES else "its name says nothing of the kind"
    )
    if mime == "text/html" and suffix not in _HTML_SUFFIXES:
        raise not_media(
            "probe", "web_page", f"it is a web page, and {name_text}: an error page? Fetch it again"
        )
    if suffix in _MEDIA_SUFFIXES and mime.startswith(("text/", "application/")) and mime not in _MAY_BE_MEDIA:
        raise not_media(
            "probe", "other_content", f"it is {mime}, and {name_text}: fetch it again, or rename it"
        )
    if mime == UNKNOWN and suffix and suffix not in _MEDIA_SUFFIXES | _TEXT_SUFFIXES:
        raise not_media(
            "probe",
            "unknown_type",
            f"its first bytes are those of no known format, and its name says {suffix}",
        )
