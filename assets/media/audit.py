"""The audit of one file: whether it is sound to its last byte, and its row of the media table."""

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .audio.audit import audit_audio
from .clips.audit_and_cut import Ahead
from .cutters import MEDIA_KINDS, kind_of
from .image.audit import audit_image
from .media_table import Row, media_row
from .policy import CutPolicy
from .text import audit_text
from .unit import Kind
from .video.audit import audit_video

AUDITS: Mapping[Kind, Callable[[str, CutPolicy, Ahead | None], Row]] = {
    "image": lambda path, *_: audit_image(path),
    "video": lambda path, policy, ahead: audit_video(path, policy.video, ahead),
    "audio": lambda path, *_: audit_audio(path),
    "text": lambda path, *_: audit_text(path),
}
_POLICY = CutPolicy()


def audit(
    path: str,
    mime: str,
    kinds: Collection[Kind] = MEDIA_KINDS,
    policy: CutPolicy = _POLICY,
    ahead: Ahead | None = None,
) -> dict[str, Any]:
    """Return every column of `MEDIA`; key and sha256 are the caller's to fill in.

    mime: as sniffed; the name plays no part.
    policy: says whether HDR and deep colour are taken.
    ahead: makes the clips of a video on the way.

    Raises: Unusable: rejected for a damaged file, dropped for a sound one that is not taken.
    """
    kind = kind_of(path, mime, kinds)
    facts = AUDITS[kind](path, policy, ahead)
    return media_row({"mime": mime, "kind": kind, "nbytes": os.path.getsize(path), **facts})
