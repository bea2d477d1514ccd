"""Kinds of media: a file's kind, unsupported formats, and each kind's cutter."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from loader.storage import Store

from .container import kind_inside
from .policy import CutPolicy
from .segments import Segment
from .sniff import EMPTY, SUBTITLES, UNKNOWN
from .stated_sizes import check_sizes
from .unit import Kind, Unit, dropped, not_media, not_supported, rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipStaging:
    """Location of an object's clips between its audit and its cut."""

    store: Store
    key: str
    """Key prefix, derived from everything that determines the clips' bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts of an object that are known before it is cut."""

    audit: Mapping[str, Any] = field(default_factory=dict)
    """Media table row; empty if there is none."""
    segments: tuple[Segment, ...] = ()
    """Segments from the `_segments` table."""
    staging: ClipStaging | None = None
    """Staging of early clips or None."""


NOTHING = Known()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutter:
    """Cutting function of one kind, and the format of its samples."""

    function: str
    """"module:function": (file, scratch folder, policy) -> units."""
    facts: str
    """Name under which samples store a unit's `json`. It differs by kind, since a field has one group per dataset."""
    has_label: bool
    """True if samples have the field `cls`."""
    takes_known: bool
    """True if the function also takes `Known`."""

    def cut(
        self,
        path: str,
        scratch: Path,
        policy: CutPolicy,
        known: Known = NOTHING,
    ) -> list[Unit]:
        """Cut one file. Raises: Unusable; StoreError."""
        module, _, name = self.function.partition(":")
        function = getattr(import_module(module), name)
        units: list[Unit] = function(path, scratch, policy, *([known] if self.takes_known else []))
        return units


CUTTERS: Mapping[Kind, Cutter] = {
    "image": Cutter(
        function="assets.media.image.cut:cut_image",
        facts="photo.json",
        has_label=True,
        takes_known=False,
    ),
    "video": Cutter(
        function="assets.media.clips.cut:cut_video",
        facts="clip.json",
        has_label=False,
        takes_known=True,
    ),
    "audio": Cutter(
        function="assets.media.audio.cut:cut_audio",
        facts="speech.json",
        has_label=False,
        takes_known=True,
    ),
    "text": Cutter(
        function="assets.media.text:cut_text",
        facts="document.json",
        has_label=False,
        takes_known=False,
    ),
}

MEDIA_KINDS: tuple[Kind, ...] = ("image", "video", "audio")
ALL_KINDS: tuple[Kind, ...] = tuple(CUTTERS)

IMAGE_TYPES = (
    "image/jpeg",
    "image/png",
    "image/webp",
    "image/tiff",
    "image/bmp",
    "image/gif",
    "image/avif",
    "image/heic",
)
TEXT_TYPES = ("text/plain", "application/json")


def file_kind(path: str, mime: str, kinds: Collection[Kind] = MEDIA_KINDS) -> Kind:
    """Return a file's kind. Raises: Unusable if it is not one of `kinds`."""
    if mime == EMPTY:
        raise rejected("probe", "empty", "the file has no bytes")
    if mime == UNKNOWN:
        raise rejected("probe", "unknown_type", "its first bytes are those of no known format")
    check_supported(mime)
    if mime in SUBTITLES:
        raise dropped(
            "probe", "subtitles", "subtitles are not text of their own; store a text without times as .txt"
        )
    kind: Kind | None = None
    if mime in IMAGE_TYPES:
        kind = "image"
        if mime == "image/heic":
            from .image.open import read_heif

            read_heif()
    elif mime.startswith(("video/", "audio/")):
        check_sizes(path)
        kind = kind_inside(path)
    elif mime in TEXT_TYPES:
        kind = "text"
    if kind is None or kind not in kinds:
        raise dropped(
            "probe",
            "type_not_taken",
            f"{mime} is none of what is taken: {', '.join(sorted(kinds))}",
            given=mime,
            accepted=sorted(kinds),
        )
    return kind


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
"""Type by content -> (format name, what to do instead)."""

# Suffixes of images, audio and video (not ts, which is also TypeScript).
_MEDIA_SUFFIXES = frozenset((
    "jpg", "jpeg", "jpe", "jfif", "png", "webp", "tif", "tiff", "bmp", "gif", "avif", "heic", "heif", "jp2", "j2k",
    "jxl", "tga", "ppm", "pgm", "pbm", "pnm", "psd", "ico", "exr", "hdr", "dng", "cr2", "cr3", "nef", "arw", "raf",
    "orf", "rw2", "mp4", "m4v", "mov", "mkv", "webm", "avi", "flv", "mpg", "mpeg", "m2ts", "ogv", "wmv", "asf",
    "mxf", "dv", "3gp", "3g2", "ivf", "h264", "264", "h265", "265", "hevc", "vob", "wav", "flac", "mp3", "m4a",
    "m4b", "mka", "aac", "ogg", "oga", "opus", "amr", "aif", "aiff", "aifc", "caf", "wma", "w64", "ac3", "eac3",
    "au", "ape", "wv", "tta",
))  # fmt: skip

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
    """Check that an object's type by content, `mime`, matches its name.

    Raises: Unusable for a web page, text or archive named as media, and unknown bytes with another type's name.
    """
    suffix = PurePosixPath(key).suffix[1:].lower()
    name_text = "its name says nothing of the kind"
    if suffix in _MEDIA_SUFFIXES:
        name_text = f"its name says {suffix}"
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
