"""Records of a version's page, with the parts of its filter as keywords."""

import dataclasses

from penstock.view.facets.version_filter import VersionFilter
from penstock.view.inspect.version_record import version_record

PARTS = {field.name for field in dataclasses.fields(VersionFilter)}


def read_page(version, **asked):
    """Return the record of a page. asked: parts of the filter, as in an address, and keywords of `version_record`."""
    parts = {name: asked.pop(name) for name in PARTS & asked.keys()}
    for name in ("terms", "within", "without"):
        if name in parts:
            parts[name] = tuple(parts[name])
    return version_record(version, VersionFilter(**parts), **asked)
