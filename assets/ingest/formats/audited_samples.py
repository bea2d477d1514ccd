"""The audit of a raw object of another format: its samples are walked, or read, to the end.

A worker does it: an object that kills or holds its reader costs itself alone.
"""

from collections.abc import Mapping
from typing import Any

from loader.dataset.columnar.choices import Options
from loader.storage import Store

from ...media.media_table import media_row
from ...media.unit import dropped
from ...source_formats import read_formats
from .read_place import read_place
from .sample_facts import Row
from .walked_objects import landed_info, refused_where_unreadable, walked_place


def audit_samples(landing: Store, raw: Row, format: str, choices: Mapping[str, Any], batch: str) -> Row:
    """Return the row of an object in the media table.

    choices: of the format's reader, as `Options.to_json`. batch: text that differs between two audits: a place is
    listed once for each.

    Raises: Unusable; Fault; Throttled; Transient.
    """
    with refused_where_unreadable("probe"):
        place_of = read_place if format in read_formats() else walked_place
        found = place_of(batch, landing, format, Options.from_json(dict(choices)))
        if not found.has_samples(landed_info(found.landing, raw)):
            raise dropped("probe", "no_samples", "it holds no sample")
    facts = {"mime": raw["mime"], "kind": format, "nbytes": raw["nbytes"], "container": format}
    return media_row(facts) | {"key": raw["key"], "sha256": raw["sha256"]}
