"""Register Energon datasets: WebDataset archives whose field names keep their case.

The index may be older than its archives. It is used if its samples fill the archive and the last header is where
expected. Otherwise the archive's headers are read.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from loader.dataset.columnar.json_members import FIELD, JsonMembers
from loader.storage import ByteRange, ObjectInfo, Store

from ..reading.exported import Exported, SampleColumns, exported_at, metadata_member
from ..reading.sample import ForeignSample, FoundObjects
from ..reading.window import Neighbours, ObjectWindow
from .energon_index import FOLDER, INDEX, IndexedMember, IndexedTar, NvMeta, index_of, meta_of
from .tar_headers import BLOCK_BYTES, is_header
from .webdataset_registered import JsonDocuments, metadata_at, samples_in

OBJECTS_PER_SHARD = 1


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the archives that the dataset lists."""
    objects = {info.key: info for info in infos}
    meta = meta_of(store, objects)
    index: Mapping[int, IndexedTar] = {}
    if INDEX in objects:
        index = index_of(store, objects[INDEX], len(meta.counts))
    indexed = {key: index[number] for number, key in enumerate(meta.counts) if number in index}
    exported = exported_at(store, infos, "energon")
    members = None if exported else JsonMembers()
    dataset = _EnergonDataset(store, meta, indexed, exported, Neighbours(), members)
    listed = [info for info in infos if info.key in meta.counts and info.key not in meta.excluded]
    lacking = [
        f"{store.url}/{FOLDER} lists {key!r}, which is not there" for key in meta.counts if key not in objects
    ]
    return FoundObjects(listed, dataset.samples, lacking=lacking, members=members, seals=True)


class _EnergonDataset(NamedTuple):
    store: Store
    meta: NvMeta
    indexed: Mapping[str, IndexedTar]
    exported: Exported | None
    neighbours: Neighbours
    members: JsonMembers | None

    def samples(self, info: ObjectInfo) -> Iterator[ForeignSample]:
        split, excluded = self.meta.splits.get(info.key), self.meta.excluded
        window = ObjectWindow(self.store, info, neighbours=self.neighbours)
        try:
            by_headers = partial(samples_in, window, self.exported, self.members, lower=False)
            for sample in self._by_index(window, info) or by_headers():
                if not excluded.isdisjoint((f"{info.key}/{sample.key}", f"{info.key}/./{sample.key}")):
                    continue
                if split is not None and self.exported is None:
                    sample = sample._replace(source={"split": split})
                yield sample
        finally:
            window.close()

    def _by_index(self, window: ObjectWindow, info: ObjectInfo) -> Iterator[ForeignSample] | None:
        if info.key not in self.indexed:
            return None
        indexed_samples = self.indexed[info.key].samples(info.nbytes, self.meta.counts[info.key])
        if indexed_samples is None or not _has_header(window, *indexed_samples[-1]):
            return None
        return self._each(window, indexed_samples)

    def _each(
        self, window: ObjectWindow, indexed_samples: list[tuple[str, list[IndexedMember]]]
    ) -> Iterator[ForeignSample]:
        member = metadata_member(self.exported.fields) if self.exported else None
        documents = JsonDocuments(window, self.members, lower=False)
        for document in (one for _, members in indexed_samples for one in members if one.name == FIELD):
            documents.add(ByteRange(document.offset, document.nbytes), window.read)
        rows = documents.rows()
        for key, members in indexed_samples:
            fields = {one.name: ByteRange(one.offset, one.nbytes) for one in members}
            columns: SampleColumns | tuple[()] | tuple[dict[str, Any]] = ()
            if rows and FIELD in fields:
                columns = (rows[fields[FIELD].offset],)
            if self.exported and member in fields:
                columns = metadata_at(window, self.exported, fields.pop(member), key)
            yield ForeignSample(key.removeprefix("./"), fields, *columns)


def _has_header(window: ObjectWindow, key: str, members: list[IndexedMember]) -> bool:
    last = members[-1]
    block = window.read(last.offset - BLOCK_BYTES, BLOCK_BYTES)
    return is_header(block, f"{key}.{last.name}", last.nbytes)
