"""The map of a version: which samples of a filter lie on it, in which colours, and the sample at a point."""

from dataclasses import dataclass

import numpy as np

import loader
from loader.dataset.search.index_record import similarity_field
from loader.dataset.tables.parquet import Int64s
from loader.errors import Corrupt, FieldNotFound, FormatTooNew, InvalidRuntime, NotIndexed
from loader.keywords import did_you_mean

from ...search.map.drawing import CATEGORIES, Box, Categories, Palette, draw, nearest, parse_box
from ...search.map.lasso import MAP_UNITS, Places
from ...text import clean
from ..facets.column_codes import CATEGORY, Bools, CodedColumn
from ..facets.filter_members import filter_members
from ..facets.map_columns import map_columns
from ..facets.version_columns import VersionColumns
from ..facets.version_filter import VersionFilter, check_filter
from ..json_record import JsonRecord
from ..page_address import WrongParameter

DEFAULT_COLOUR = "label"
"""Column that colours a map, if the address names none and the version has it."""
NEAR_SHARE = 16
"""Part of the box's width within which a sample is near a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCategory(JsonRecord):
    """A value of the column that colours the map."""

    value: str
    colour: int
    """Number of its colour, from 1."""
    n: int
    """Live samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRecord(JsonRecord):
    """A map, as a page shows it."""

    dataset: str
    number: int
    field: str
    """Field whose vectors were laid out; "" if the version has none."""
    has_map: bool
    is_missing: bool
    """True if its samples were not laid out yet: `error` names the command."""
    n_samples: int
    """Live samples."""
    n_placed: int
    """Live samples with a place."""
    n_found: int
    """Samples with a place that pass the filter."""
    lasso: str
    """Polygon of the filter, or ""."""
    box: tuple[int, int, int, int]
    """Part that is drawn: x0, y0, x1, y1."""
    colour: str
    """Column that colours it, or ""."""
    categories: tuple[MapCategory, ...]
    """Values with a colour of their own, the most frequent first."""
    error: str
    """Why there is no map, or which part of the address does not apply; ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearRecord(JsonRecord):
    """The sample nearest to a point of the map."""

    ordinal: int | None
    """None if no sample of the filter is near."""
    key: str
    label: str
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapView:
    """Places of the samples that are counted, and which of them pass a filter."""

    x: Places
    y: Places
    ordinals: Int64s
    """int64 [n]: the samples with a place."""
    selected: Bools | None
    """bool [n]; None stands for all."""
    error: str
    """Sentences about parts of the filter that do not apply."""


def has_vectors(version: "loader.Version") -> bool:
    """Return whether a version has a field that a map could show."""
    try:
        similarity_field(version, None)
    except FieldNotFound:
        return False
    return True


def map_view(
    version: "loader.Version",
    address: VersionFilter,
    columns: VersionColumns,
) -> MapView:
    """Return a version's places under a filter. Raises: NotIndexed; FieldNotFound; Corrupt."""
    places = columns.places(version)
    checked = check_filter(version, address)
    members = filter_members(
        version,
        checked,
        columns,
    )
    has_place = places.has_place
    counted = columns.ordinals(version)
    if counted is None:
        counted = np.arange(len(version))
    # bool [counted]: a sample without a usable vector has no place.
    is_placed = has_place[counted]
    ordinals = counted[is_placed]
    selected = None
    if members.whole is not None:
        selected = members.whole[is_placed]
    return MapView(
        x=places.x[ordinals],
        y=places.y[ordinals],
        ordinals=ordinals,
        selected=selected,
        error="\n".join(members.checked.errors),
    )


def map_record(
    version: "loader.Version",
    address: VersionFilter,
    columns: VersionColumns,
    *,
    box: str = "",
    colour: str | None = None,
) -> MapRecord:
    """Return the facts of a map's page. A version without a map, or a wrong address, has an `error`."""
    part, wrong_box = _parse_box(box)
    errors = [wrong_box]
    n_placed = 0
    n_found = 0
    has_map = False
    is_missing = False
    name = ""
    try:
        name = similarity_field(version, None)
        view = map_view(
            version,
            address,
            columns,
        )
        has_map = True
        n_placed = len(view.ordinals)
        n_found = n_placed
        if view.selected is not None:
            n_found = int(np.count_nonzero(view.selected))
        errors.append(view.error)
    except NotIndexed as error:
        is_missing = True
        errors.append(str(error))
    except (FieldNotFound, Corrupt, FormatTooNew) as error:
        errors.append(str(error))
    column = ""
    categories: tuple[MapCategory, ...] = ()
    if has_map:
        try:
            column = colour_column(version, colour)
            categories = _categories(version, column, columns)
        except FieldNotFound as error:
            errors.append(str(error))
    return MapRecord(
        dataset=version.dataset,
        number=version.number,
        field=name,
        has_map=has_map,
        is_missing=is_missing,
        n_samples=len(version),
        n_placed=n_placed,
        n_found=n_found,
        lasso=address.lasso,
        box=(part.x0, part.y0, part.x1, part.y1),
        colour=column,
        categories=categories,
        error="\n".join(error for error in errors if error),
    )


def _parse_box(text: str) -> tuple[Box, str]:
    """Return (part of the map, ""), or (all of it, why the text is not part)."""
    try:
        return parse_box(text), ""
    except InvalidRuntime as error:
        return parse_box(""), str(error)


def colour_column(version: "loader.Version", colour: str | None) -> str:
    """Return the column that colours a map, or "". colour: None for the default. Raises: FieldNotFound."""
    names = [*version.manifest["columns"], *map_columns(version)]
    if colour is None and DEFAULT_COLOUR in names:
        return DEFAULT_COLOUR
    if not colour:
        return ""
    if colour not in names:
        hint = did_you_mean(colour, names) or ";"
        raise FieldNotFound(f"colour names {clean(colour, 80)!r}{hint} it is not a column of {version.name}")
    return colour


def _categories(
    version: "loader.Version",
    column: str,
    columns: VersionColumns,
) -> tuple[MapCategory, ...]:
    if not column:
        return ()
    coded = columns.codes(version, column)
    categories = []
    for position, code in enumerate(_frequent_codes(coded)):
        category = MapCategory(
            value=clean(str(coded.values[code].value), 80),
            colour=position + 1,
            n=int(coded.all[code]),
        )
        categories.append(category)
    return tuple(categories)


def _frequent_codes(coded: CodedColumn) -> list[int]:
    """Return the codes of a column's most frequent values, as many as there are colours."""
    if coded.kind not in (CATEGORY, "bool"):
        return []
    counts = coded.all[: len(coded.values)]
    # Stable: equally frequent values keep their order, and so their colours.
    order = np.argsort(-counts, kind="stable")
    codes = [int(code) for code in order if code != coded.null_code]
    return codes[:CATEGORIES]


def map_image(
    version: "loader.Version",
    address: VersionFilter,
    columns: VersionColumns,
    *,
    box: Box,
    colour: str | None,
    palette: Palette,
) -> bytes:
    """Return a PNG of a map. Raises: NotIndexed; FieldNotFound; Corrupt."""
    view = map_view(
        version,
        address,
        columns,
    )
    column = colour_column(version, colour)
    return draw(
        view.x,
        view.y,
        selected=view.selected,
        categories=_numbers(version, view, column, columns),
        box=box,
        palette=palette,
    )


def _numbers(
    version: "loader.Version",
    view: MapView,
    column: str,
    columns: VersionColumns,
) -> Categories | None:
    """Return uint8 [n]: the colour of each place, from 0; None without a column of categories."""
    if not column:
        return None
    coded = columns.codes(version, column)
    coloured = _frequent_codes(coded)
    if not coloured:
        return None
    # uint8 [codes]: CATEGORIES is the colour of all other values.
    table = np.full(max(coded.n_codes, 1), CATEGORIES, np.uint8)
    table[coloured] = np.arange(len(coloured))
    codes = coded.codes
    counted = columns.ordinals(version)
    if counted is None:
        return table[codes[view.ordinals]]
    # [n]: codes are in the order of the counted samples, not of all.
    position = np.searchsorted(counted, view.ordinals)
    return table[codes[position]]


def near_record(
    version: "loader.Version",
    address: VersionFilter,
    columns: VersionColumns,
    point: tuple[int, int],
    box: Box,
) -> NearRecord:
    """Return the sample of a filter nearest to a point. Raises: WrongParameter; NotIndexed; FieldNotFound; Corrupt."""
    if max(point) >= MAP_UNITS:
        raise WrongParameter(
            f"the point {point[0]},{point[1]} is not on the map: pass x and y below {MAP_UNITS:,}"
        )
    view = map_view(
        version,
        address,
        columns,
    )
    row = nearest(
        view.x,
        view.y,
        point,
        # In proportion to the part that is drawn: a click has the same reach in pixels.
        max(1, (box.x1 - box.x0) // NEAR_SHARE),
        view.selected,
    )
    if row is None:
        return NearRecord(
            ordinal=None,
            key="",
            label="",
            x=point[0],
            y=point[1],
        )
    ordinal = int(view.ordinals[row])
    return NearRecord(
        ordinal=ordinal,
        key=version.keys(np.array([ordinal]))[0],
        label=_label(version, ordinal, columns),
        x=int(view.x[row]),
        y=int(view.y[row]),
    )


def _label(
    version: "loader.Version",
    ordinal: int,
    columns: VersionColumns,
) -> str:
    if DEFAULT_COLOUR not in version.manifest["columns"] or columns.ordinals(version) is not None:
        return ""
    coded = columns.codes(version, DEFAULT_COLOUR)
    code = int(coded.codes[ordinal])
    if code >= len(coded.values) or coded.values[code].value is None:
        return ""
    return clean(str(coded.values[code].value), 80)
