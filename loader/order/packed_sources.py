"""Pack the views of all sources by one request, so that a batch has one format."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import InvalidPlan
from .planned_source import MixtureSource, mixture_source
from .sources.items_view import unsupported
from .sources.packing import PackBy, PackedView, Packing
from .sources.views import OrderView


def pack_sources(
    views: Mapping[str, OrderView | MixtureSource],
    pack: object,
    bucket_by: object,
) -> tuple[dict[str, OrderView | MixtureSource], Packing]:
    """Return the sources with packed views, and how they are packed. Raises: InvalidPlan."""
    if not isinstance(pack, PackBy):
        message = f"pack = {pack!r}: loader.pack('tokens.npy', length=2048) is needed"
        raise InvalidPlan(message, what="pack", given=pack)
    if bucket_by is not None:
        message = "pack= with bucket_by=: packed sequences are of one length; leave bucket_by out"
        raise InvalidPlan(message, what="bucket_by", accepted="pack or bucket_by")
    packed: dict[str, OrderView | MixtureSource] = {}
    packings: dict[str, Packing] = {}
    for name, view_or_source in views.items():
        source = mixture_source(view_or_source)
        view: Any = source.view
        is_packed = isinstance(view, PackedView)  # by the caller, which saves the reads of another packing
        if is_packed and view.request != pack:
            raise InvalidPlan(
                f"source {name!r} is packed as {view.request}, and pack= asks for {pack}: pass the view before it was "
                "packed, or the same request as pack=",
                what=f"source {name!r}",
                given=str(view.request),
                accepted=str(pack),
            )
        if not is_packed:
            if not hasattr(view, "packed"):
                text = unsupported(name, view, "cannot be packed")
                raise InvalidPlan(
                    text,
                    what=f"source {name!r}",
                    given=type(view).__name__,
                    accepted="views that can be packed",
                )
            try:
                view = view.packed(pack)
            except InvalidPlan as error:
                raise error.with_message(f"source {name!r}: {error}", where=f"source {name!r}") from None
        packed[name] = replace(source, view=view)
        packings[name] = view.packing

    return packed, _common_packing(packings)


def _common_packing(packings: Mapping[str, Packing]) -> Packing:
    """Return the packing of the first source. Raises: InvalidPlan if another source's differs."""
    # All sources have the request's fields. Their dtypes come from the versions, and may differ.
    first = next(iter(packings.values()))
    for number, (field, _, _) in enumerate(first.layout):
        dtypes = {name: packing.layout[number][2] for name, packing in packings.items()}
        if len(set(dtypes.values())) > 1:
            raise InvalidPlan(
                f"pack: {field!r} has the dtypes {dtypes}; a batch has one: store the field of all sources alike",
                what="pack",
                where=field,
                given=dtypes,
            )
    for name, packing in packings.items():
        if packing.shapes != first.shapes or packing.ragged != first.ragged:
            raise InvalidPlan(
                f"pack: source {name!r} is packed as {packing.to_json()}, another one as {first.to_json()}; a batch "
                "has one format: store the fields of all sources alike",
                what="pack",
                where=f"source {name!r}",
                given=packing.to_json(),
                accepted=first.to_json(),
            )
    for number, (column, _) in enumerate(first.columns):
        kinds = {name: packing.columns[number][1] for name, packing in packings.items()}
        if len(set(kinds.values())) > 1:
            raise InvalidPlan(
                f"pack: column {column!r} has the types {kinds}; a batch has one: store the column of all sources "
                "alike",
                what="pack",
                where=f"column {column!r}",
                given=kinds,
                accepted="one type",
            )
    return first
