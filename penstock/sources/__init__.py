"""Data sets in other people's formats: versions written in them, and read out of them.

A format is a line in `FORMATS`, and a module in `exporters` with the functions of `exporter.Exporter`.

Equal samples give equal bytes: an export that was killed is continued by doing it again. `tests/penstock/sources` holds
every format of the registry to the same laws.
"""

from importlib import import_module
from typing import cast

from loader.errors import InvalidStore

from .exporter import Exporter

FORMATS = {
    "energon": ".exporters.to_energon",
    "files": ".exporters.to_files",
    "mds": ".exporters.to_mds",
    "webdataset": ".exporters.to_webdataset",
}
"""Format -> its module, which is imported when it is used."""


def exporter_named(name: str) -> Exporter:
    """Return the exporter of a format. Raises: InvalidStore for another name."""
    if name not in FORMATS:
        raise InvalidStore(f"format {name!r} is not known; accepted: {', '.join(sorted(FORMATS))}")
    return cast(Exporter, import_module(FORMATS[name], __name__))
