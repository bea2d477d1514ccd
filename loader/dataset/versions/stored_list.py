"""Store lists of samples that fix the order of an epoch.

    lists/<sha256>.parquet      ordinal; one row per position

The name is the SHA-256 of the ordinals as little-endian int64.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, InvalidPlan, ObjectNotFound
from ...order.random.keyed_permutation import I64
from ...order.sources.views import ListedView, check_list, list_sha256
from ...storage import Store
from ..tables.parquet import parse_stored, table_bytes
from .version import Version, View


def listed(view: Version | View, ordinals: Sequence[int] | I64 | str) -> ListedView:
    """Return a view whose first epoch has a given sample order; later epochs are shuffled.

    Args:
        view: View or version with the samples.
        ordinals: Version ordinals, such as `view.ordinals(keys)`, in first-epoch order; repeats are allowed, and
            samples that are not listed are left out. Or the name of a list in the root, as printed by `penstock
            order-of`.

    The root stores the list, 8 bytes per sample before compression. A list that names no sample twice may be packed, in
    its order. Its plan has no buckets and does not grow.

    Raises: InvalidPlan for other values, or if the view lacks a sample; EmptyView; Corrupt; Forbidden if the root is
    read-only and lacks the list.
    """
    view_listed = view.select() if isinstance(view, Version) else view
    if not isinstance(view_listed, View):
        raise InvalidPlan(
            f"listed({type(view_listed).__name__}): a version or a view of one is needed",
            what="view",
            given=type(view_listed).__name__,
            accepted="a version or a view of one",
        )
    if isinstance(ordinals, str):
        return reopen_list(view_listed, ordinals)
    listed_view = ListedView(view_listed, _of_view(view_listed, check_list(ordinals)))
    store = view_listed.version.store
    if read_list(store, listed_view.list_sha256) is None:
        try:
            store.put_if_absent(list_path(listed_view.list_sha256), list_bytes(listed_view))
        except AlreadyExists:  # another process stored it first: check its list against its name
            read_list(store, listed_view.list_sha256)
    return listed_view


def reopen_list(view: View, sha256: str) -> ListedView:
    """Return the view for a list in the root. Raises: InvalidPlan if it does not exist; Corrupt."""
    store = view.version.store
    ordinals = read_list(store, sha256)
    if ordinals is None:
        raise InvalidPlan(
            f"{store.url} has no {list_path(sha256)}: restore it from a mirror, or make the list again with "
            "loader.listed",
            what=list_path(sha256),
            where=store.url,
        )
    return ListedView(view, _of_view(view, ordinals))


def list_path(sha256: str) -> str:
    return f"lists/{sha256}.parquet"


def list_bytes(view: ListedView) -> bytes:
    table = pa.table({"ordinal": pa.array(view.in_order, pa.int64())})
    return table_bytes(table, "list", facts={"path": list_path(view.list_sha256)})


def read_list(store: Store, sha256: str) -> I64 | None:
    """Return a stored list, int64 [N]; None if the store has none. Raises: Corrupt."""
    path = list_path(sha256)
    try:
        data = store.get(path).data
    except ObjectNotFound:
        return None
    name = f"{store.url}/{path}"
    return parse_list(data, path, name)


def parse_list(data: bytes, path: str, name: str) -> I64:
    """Return the list in a file, int64 [N], checked against its path. name: with the root's URL. Raises: Corrupt."""
    table = parse_stored(data, path, name)
    if table.column_names != ["ordinal"]:
        raise Corrupt(
            f"{name} has the columns {table.column_names}, a list has 'ordinal': delete it",
            what="columns",
            where=name,
            given=table.column_names,
            accepted=["ordinal"],
        )
    ordinals: I64 = table["ordinal"].to_numpy().astype(np.int64)
    if path != list_path(list_sha256(ordinals)):
        raise Corrupt(
            f"{name}: the sha256 of its ordinals is {list_sha256(ordinals)}: it was damaged or renamed. Restore it "
            "from a mirror, or delete it and make the list again with loader.listed",
            what="sha256",
            where=name,
            given=list_sha256(ordinals),
        )
    return ordinals


def _of_view(view: View, ordinals: I64) -> I64:
    """Return the ordinals (0 or more) of a list. Raises: InvalidPlan if the view lacks one."""
    n = len(view.version)
    is_missing = ordinals >= n
    if view.is_filtered or view.first:
        is_member = view.members()
        within = np.minimum(ordinals, n - 1)  # those from n on are missing already
        is_missing |= ~is_member[within]
    wrong = np.flatnonzero(is_missing)
    if len(wrong):
        place = int(wrong[0])
        raise InvalidPlan(
            f"listed: place {place} has the ordinal {ordinals[place]}, which {view!r} lacks, as {len(wrong)} of "
            f"{len(ordinals)} are: {view.version.name} has {n} samples, the view {len(view)}. Ordinals belong to "
            "one version",
            what="ordinal",
            where=view.version.name,
            given=int(ordinals[place]),
        )
    return ordinals
