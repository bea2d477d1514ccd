"""Audit of one raw object: decode it to its last byte, and measure its row of the media table."""

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .audio.audit import audit_audio
from .clips.audit_and_cut import EarlyClips
from .cutters import MEDIA_KINDS, kind_of
from .image.audit import audit_image
from .media_table import Row, media_row
from .policy import CutPolicy
from .text import audit_text
from .unit import Kind
from .video.audit import audit_video

AUDITS: Mapping[Kind, Callable[[str, CutPolicy, EarlyClips | None], Row]] = {
    "image": lambda path, *_: audit_image(path),
    "video": lambda path, policy, early: audit_video(path, policy.video, early),
    "audio": lambda path, *_: audit_audio(path),
    "text": lambda path, *_: audit_text(path),
}
_POLICY = CutPolicy()


def audit(
    path: str,
    mime: str,
    kinds: Collection[Kind] = MEDIA_KINDS,
    policy: CutPolicy = _POLICY,
    early: EarlyClips | None = None,
) -> dict[str, Any]:
    """Return every column of `MEDIA` but key and sha256.

    mime: by content, never by name.
    policy: decides whether HDR and deep colour are accepted.
    early: makes the clips of a video during the decode.

    Raises: Unusable: rejected for a damaged file, dropped for a healthy one that the policy does not accept.
    """
    kind = kind_of(path, mime, kinds)
    facts = AUDITS[kind](path, policy, early)
    return media_row({"mime": mime, "kind": kind, "nbytes": os.path.getsize(path), **facts})
