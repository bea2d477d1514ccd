"""Find documents that are marked as copies of a document in another split."""

from typing import TYPE_CHECKING

from ..dedup.policy import TEXT

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("key", "kind", "split", "dup_of")


def marked_copies(
    table: "pl.DataFrame",
    baseline: "pl.LazyFrame | None",
) -> list[tuple[str, str, str, str]]:
    """Return (key, split, key of the original, its split) of each document whose original is in another split.

    Documents without `dup_of` are in none: `NearDuplicates(action="mark")` writes it.
    """
    if not all(name in table.columns for name in COLUMNS):
        return []
    is_copy = (table["kind"] == TEXT) & table["dup_of"].is_not_null()
    copies = table.filter(is_copy)
    originals = copies["dup_of"].unique()
    split_of = dict[str, str | None]()
    # A version that was published before the dataset had splits has none.
    if baseline is not None and "split" in baseline.collect_schema():
        published = baseline.select("key", "split").collect()
        _add_splits(split_of, published, originals)
    # The batch last: a key of both is the batch's new sample.
    _add_splits(split_of, table, originals)
    across: list[tuple[str, str, str, str]] = []
    for key, split, original in copies.select("key", "split", "dup_of").iter_rows():
        other = split_of.get(original)
        if original in split_of and split != other:
            across.append((key, split or "", original, other or ""))
    return across


def _add_splits(
    split_of: dict[str, str | None],
    samples: "pl.DataFrame",
    keys: "pl.Series",
) -> None:
    """Add the splits of the samples with these keys."""
    is_original = samples["key"].is_in(keys.implode())
    rows = samples.filter(is_original)
    split_of.update(rows.select("key", "split").iter_rows())
