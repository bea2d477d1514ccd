"""Which function cuts which kind of media, and what its samples look like. One line per kind."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from .container import check_riff, kind_inside
from .known import NOTHING, Known
from .photos.cut import cut_image
from .photos.open import read_heif
from .policy import CutPolicy
from .sniff import EMPTY, UNKNOWN
from .sounds.cut import cut_audio
from .text import cut_text
from .unit import Kind, Unit, dropped, rejected
from .videos.cut import cut_video

Cut = Callable[[str, Path, CutPolicy], list[Unit]]
CutKnown = Callable[[str, Path, CutPolicy, Known], list[Unit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutter:
    """cut: (file, scratch folder, policy) -> units; facts: the field that takes a unit's `json` (a field name
    has one group in a dataset, so each kind has its own); has_label: whether samples carry `cls`; cut_known: the
    same as `cut`, for a kind that makes use of what is known of the object before."""

    cut: Cut
    facts: str
    has_label: bool
    cut_known: CutKnown | None = None

    def units(self, path: str, scratch: Path, policy: CutPolicy, known: Known = NOTHING) -> list[Unit]:
        """Raises: Unusable; StoreError."""
        if self.cut_known is not None:
            return self.cut_known(path, scratch, policy, known)
        return self.cut(path, scratch, policy)


CUTTERS: Mapping[Kind, Cutter] = {
    "image": Cutter(cut=cut_image, facts="photo.json", has_label=True),
    "video": Cutter(cut=cut_video, facts="clip.json", has_label=False, cut_known=cut_video),
    "audio": Cutter(cut=cut_audio, facts="speech.json", has_label=False, cut_known=cut_audio),
    "text": Cutter(cut=cut_text, facts="document.json", has_label=False),
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
    """What to make of a file of this (sniffed) type; `kinds` are those that are wanted. Raises: Unusable."""
    if mime == EMPTY:
        raise rejected("probe", "empty", "the file has no bytes")
    if mime == UNKNOWN:
        raise rejected("probe", "unknown_type", "its first bytes are those of no known format")
    kind: Kind | None = None
    if mime in IMAGE_TYPES:
        kind = "image"
        if mime == "image/heic":
            read_heif()
    elif mime.startswith(("video/", "audio/")):
        check_riff(path)
        kind = kind_inside(path)
    elif mime in TEXT_TYPES:
        kind = "text"
    if kind is None or kind not in kinds:
        raise dropped(
            "probe", "type_not_taken", f"{mime} is none of what is taken: {', '.join(sorted(kinds))}"
        )
    return kind
