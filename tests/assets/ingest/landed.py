"""Rows of landed objects, for tests that land none."""

from collections.abc import Mapping
from typing import Any


def raw_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of the landed object of a media row."""
    words = ("uri", "etag", "label", "title", "text", "licence", "author", "origin")
    told = {name: row[name] for name in ("key", "sha256", "mime")}
    return dict.fromkeys(words, "") | told | {"nbytes": 1, "segments": None}
