"""Name what a source states and lacks. A batch takes what is there, because the rest may still arrive."""

from collections.abc import Collection
from os.path import commonprefix

from loader.dataset.columnar.choices import ColumnarOptions
from loader.dataset.columnar.shard_names import ShardSet, shard_set
from loader.errors import PenstockError
from loader.storage import ObjectInfo, Store
from loader.storage.store import list_place
from penstock.compute.pool import is_fault
from penstock.formats.reading.stated_counts import StatedCounts
from penstock.formats.registration.selection import live_files
from penstock.formats.registry import FORMATS, REGISTERED, importer_named, joining_importer, registered_named

from ...sources import JOINED


def missing_notes(
    files: Store,
    format: str,
    options: ColumnarOptions,
    batch_keys: Collection[str],
) -> list[str]:
    """Return what the source states and lacks, one text each.

    An object's name may state how many shards its set has ("a-00001-of-00005"), and metadata of the format how many
    objects there are. Costs a listing of the source and the metadata if the format states anything; else a listing of
    the common prefix of the batch's sets.

    files: the source. batch_keys: keys of the batch.
    """
    entry = FORMATS[format]
    sets = set[ShardSet]()  # sets with a shard in the batch
    if entry.is_sharded:
        for key in batch_keys:
            member = shard_set(key)
            if member is not None:
                own_set, _ = member
                sets.add(own_set)
    states_counts = entry.states_counts and entry.companions is not None
    if not sets and not states_counts:
        return []

    stated = StatedCounts()
    if states_counts:
        listed = list(list_place(files, ""))
        stated = _stated_counts(files, format, options, listed)
    else:
        # A prefix of keys is text, and may end within a name.
        prefix = commonprefix([shards.begin for shards in sets])  # noqa: RUF071
        listed = list(list_place(files, prefix))
    keys = list[str]()  # of the listed shards that belong to `sets`
    for info in listed:
        member = shard_set(info.key)
        if member is None:
            continue
        own_set, _ = member
        if own_set in sets:
            keys.append(info.key)
    stated.add_shards(
        files.url,
        keys,
        is_left_out=lambda key: False,  # nothing was left out on purpose
    )
    return [f"missing so far: {text}" for text in stated.lines()]


def _stated_counts(
    files: Store,
    format: str,
    options: ColumnarOptions,
    infos: list[ObjectInfo],
) -> StatedCounts:
    """Return what the format states itself; nothing if its metadata is unreadable: the objects then say why."""
    try:
        if format in JOINED:
            complete = joining_importer(format).find_complete_objects(files, infos, options)
            stated = complete.stated
        elif format in REGISTERED:
            stated = registered_named(format).find_objects(files, infos).stated
        else:
            importer = importer_named(format)
            assert importer is not None, format
            live = live_files(files, format, infos)
            stated = importer.find_readable(files, live, options).stated
    except PenstockError as error:
        if is_fault(error):
            raise
        return StatedCounts()
    return stated or StatedCounts()
