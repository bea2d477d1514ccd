"""Kinds of media: which kind a file has, and the cutter of each."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from .container import kind_inside
from .known_facts import NOTHING, Known
from .other_formats import check_supported
from .policy import CutPolicy
from .sniff import EMPTY, SUBTITLES, UNKNOWN
from .stated_sizes import check_sizes
from .unit import Kind, Unit, dropped, rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutter:
    """Cutting function of one kind, and the form of its samples."""

    function: str
    """"module:function" of (file, scratch folder, policy) -> units, imported on first use."""
    facts: str
    """Field of a unit's `json`. Each kind has its own: a field has one group per dataset."""
    has_label: bool
    """True if samples carry `cls`."""
    takes_known: bool
    """True if the function also takes `Known`."""

    def cut(self, path: str, scratch: Path, policy: CutPolicy, known: Known = NOTHING) -> list[Unit]:
        """Cut one file. Raises: Unusable; StoreError."""
        module, _, name = self.function.partition(":")
        function = getattr(import_module(module), name)
        units: list[Unit] = function(path, scratch, policy, *([known] if self.takes_known else []))
        return units


CUTTERS: Mapping[Kind, Cutter] = {
    "image": Cutter(
        function="assets.media.image.cut:cut_image", facts="photo.json", has_label=True, takes_known=False
    ),
    "video": Cutter(
        function="assets.media.clips.cut:cut_video", facts="clip.json", has_label=False, takes_known=True
    ),
    "audio": Cutter(
        function="assets.media.audio.cut:cut_audio", facts="speech.json", has_label=False, takes_known=True
    ),
    "text": Cutter(
        function="assets.media.text:cut_text", facts="document.json", has_label=False, takes_known=False
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


def kind_of(path: str, mime: str, kinds: Collection[Kind] = MEDIA_KINDS) -> Kind:
    """Return the kind, one of `kinds`, of a file of this type (by content). Raises: Unusable."""
    if mime == EMPTY:
        raise rejected("probe", "empty", "the file has no bytes")
    if mime == UNKNOWN:
        raise rejected("probe", "unknown_type", "its first bytes are those of no known format")
    check_supported(mime)
    if mime in SUBTITLES:
        raise dropped(
            "probe", "subtitles", "subtitles are no text of their own; store a text without times as .txt"
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
            "probe", "type_not_taken", f"{mime} is none of what is taken: {', '.join(sorted(kinds))}"
        )
    return kind
