"""Energon's archives as samples: from the index where it fits an archive, else from the archive's headers.

An index fits whose samples fill the archive to its end, and whose last member has its header there: an index may be
older than its archives. The member `json` is read in any case: its values become columns.

Keys and fields are those that Energon sees: as WebDataset's, but names of fields keep their case. The split that an
archive is of becomes the column `split`. Archives and samples that `split.yaml` excludes are left out.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from loader.dataset.columnar.json_members import FIELD, JsonMembers
from loader.storage import ObjectInfo, Span, Store

from ..reading.exported import Exported, Told, exported_at, metadata_member
from ..reading.sample import ForeignSample, FoundObjects
from ..reading.window import Neighbours, Window
from .energon_index import INDEX, IndexedTar, Member, index_of
from .energon_meta import FOLDER, NvMeta, meta_of
from .tar_headers import BLOCK_BYTES, is_header
from .webdataset_registered import ToldMembers, metadata_at, samples_in

OBJECTS_PER_SHARD = 1


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the archives that the dataset lists. Raises: as `meta_of`, `index_of` and `exported_at`."""
    objects = {info.key: info for info in infos}
    meta = meta_of(store, objects)
    index: Mapping[int, IndexedTar] = {}
    if INDEX in objects:
        index = index_of(store, objects[INDEX], len(meta.counts))
    indexed = {key: index[number] for number, key in enumerate(meta.counts) if number in index}
    exported = exported_at(store, infos, "energon")
    members = None if exported else JsonMembers()
    dataset = _Dataset(store, meta, indexed, exported, Neighbours(), members)
    listed = [info for info in infos if info.key in meta.counts and info.key not in meta.excluded]
    lacking = [
        f"{store.url}/{FOLDER} lists {key!r}, which is not there" for key in meta.counts if key not in objects
    ]
    return FoundObjects(listed, dataset.samples, lacking=lacking, members=members, seals=True)


class _Dataset(NamedTuple):
    store: Store
    meta: NvMeta
    indexed: Mapping[str, IndexedTar]
    exported: Exported | None
    neighbours: Neighbours
    members: JsonMembers | None

    def samples(self, info: ObjectInfo) -> Iterator[ForeignSample]:
        """Yield the samples of an archive, in their order. Raises: as `webdataset.samples`."""
        split, excluded = self.meta.splits.get(info.key), self.meta.excluded
        window = Window(self.store, info, neighbours=self.neighbours)
        try:
            by_headers = partial(samples_in, window, self.exported, self.members, lower=False)
            for one in self._by_index(window, info) or by_headers():
                if not excluded.isdisjoint((f"{info.key}/{one.key}", f"{info.key}/./{one.key}")):
                    continue
                if split is not None and self.exported is None:
                    one = one._replace(source={"split": split})
                yield one
        finally:
            window.close()

    def _by_index(self, window: Window, info: ObjectInfo) -> Iterator[ForeignSample] | None:
        """Return the samples as the index has them; None where it does not fit."""
        if info.key not in self.indexed:
            return None
        found = self.indexed[info.key].samples(info.nbytes, self.meta.counts[info.key])
        if found is None or not _has_header(window, *found[-1]):
            return None
        return self._each(window, found)

    def _each(self, window: Window, found: list[tuple[str, list[Member]]]) -> Iterator[ForeignSample]:
        member = metadata_member(self.exported.fields) if self.exported else None
        documents = ToldMembers(window, self.members, lower=False)
        for one in (one for _, members in found for one in members if one.name == FIELD):
            documents.add(Span(one.offset, one.nbytes), window.read)
        rows = documents.rows()
        for key, members in found:
            fields = {one.name: Span(one.offset, one.nbytes) for one in members}
            told: Told | tuple[()] | tuple[dict[str, Any]] = ()
            if rows and FIELD in fields:
                told = (rows[fields[FIELD].offset],)
            if self.exported and member in fields:
                told = metadata_at(window, self.exported, fields.pop(member), key)
            yield ForeignSample(key.removeprefix("./"), fields, *told)


def _has_header(window: Window, key: str, members: list[Member]) -> bool:
    last = members[-1]
    block = window.read(last.offset - BLOCK_BYTES, BLOCK_BYTES)
    return is_header(block, f"{key}.{last.name}", last.nbytes)
