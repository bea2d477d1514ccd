"""A plan's sources, packed."""

from collections.abc import Mapping
from dataclasses import replace

from ...errors import InvalidPlan
from ..content import Source
from ..sources.packed_view import PackedView
from ..sources.packing import PackBy, Packing
from ..sources.views import OrderView


def pack_sources(
    views: Mapping[str, OrderView | Source], asked: object, bucket_by: object
) -> tuple[dict[str, OrderView | Source], Packing]:
    """Return every source as its packed sequences, and how these are laid out: alike in all. Raises: InvalidPlan."""
    if not isinstance(asked, PackBy):
        raise InvalidPlan(f"pack = {asked!r}: loader.pack('tokens.npy', length=2048) is needed")
    if bucket_by is not None:
        raise InvalidPlan("pack= with bucket_by=: packed sequences are of one length; leave bucket_by out")
    packed: dict[str, OrderView | Source] = {}
    kinds: dict[str, Packing] = {}
    for name, given in views.items():
        wanted = given if isinstance(given, Source) else Source(given)
        if not hasattr(wanted.view, "packed"):
            raise InvalidPlan(f"source {name!r} is a {type(wanted.view).__name__}, which cannot be packed")
        try:
            view: PackedView = wanted.view.packed(asked)
        except InvalidPlan as error:
            raise InvalidPlan(f"source {name!r}: {error}") from None
        packed[name], kinds[name] = replace(wanted, view=view), view.packing
    first = next(iter(kinds.values()))
    for number, (field, _, _) in enumerate(first.layout):
        dtypes = {name: one.layout[number][2] for name, one in kinds.items()}
        if len(set(dtypes.values())) > 1:
            raise InvalidPlan(
                f"pack: {field!r} has the dtypes {dtypes}; a batch has one: store the field of all sources alike"
            )
    return packed, first
