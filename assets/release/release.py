"""The result of a release: published versions, and batches held back."""

from dataclasses import dataclass

import loader


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Result of publishing batches."""

    version: loader.Version
    """Newest version."""
    published: tuple[str, ...]
    """Keys of the published batches."""
    held_back: tuple[str, ...]
    """Keys of the batches held back."""
    versions: tuple[loader.Version, ...] = ()
    """One version per published batch."""
