"""The audit of a raw object of another format: its samples are walked, or read, to the end.

A worker does it: an object that kills or holds its reader costs itself alone.
"""

from collections.abc import Mapping
from typing import Any, cast

from loader.dataset.columnar.choices import Options
from loader.errors import Changed, PenstockError, Throttled, Transient
from loader.storage import Store

from ...joined_objects import JoinedObjects
from ...media.media_table import media_row
from ...media.unit import dropped, rejected
from ...source_formats import JOINED, read_formats
from .read_samples import ReadPlace
from .sample_facts import Row
from .walked_objects import WalkedPlace, landed_info

_places: dict[str, ReadPlace | WalkedPlace] = {}
"""Batch -> its place: of one batch, in each worker."""


def audit_samples(landing: Store, raw: Row, format: str, choices: Mapping[str, Any], batch: str) -> Row:
    """Return the row of an object in the media table.

    choices: of the format's reader, as `Options.to_json`. batch: text that differs between two audits: a place is
    listed once for each.

    Raises: Unusable; Throttled; Transient.
    """
    try:
        if batch not in _places:
            _places.clear()
            options = Options.from_json(dict(choices))
            place = ReadPlace if format in read_formats() else WalkedPlace
            seen = cast(Store, JoinedObjects(landing, format, options)) if format in JOINED else landing
            _places[batch] = place(seen, format, options)
        found = _places[batch]
        if not found.has_samples(landed_info(found.landing, raw)):
            raise dropped("probe", "no_samples", "it holds no sample")
    except (Throttled, Transient):
        raise
    except Changed as error:
        raise dropped("fetch", Changed.__name__, error) from error
    except PenstockError as error:
        raise rejected("probe", type(error).__name__, error) from error
    facts = {"mime": raw["mime"], "kind": format, "nbytes": raw["nbytes"], "container": format}
    return media_row(facts) | {"key": raw["key"], "sha256": raw["sha256"]}
