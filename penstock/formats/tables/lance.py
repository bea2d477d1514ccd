"""Lance datasets, the newest version of one: each row that is not deleted a sample, read by fragments.

The place is the folder above `_versions`. Lance opens it by its URL, with the credentials of the environment.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from loader.dataset.columnar.arrow_columns import TableRows
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.dataset.columnar.features import Features
from loader.errors import Corrupt, InvalidStore, MissingDependency, NotSupported, PenstockError
from loader.modalities.error_origin import is_of_the_machine
from loader.storage import ObjectInfo, Store
from loader.storage.cloud.s3 import s3_config

from ..importing.importer import KnownNames, Options, Readable, ReadSample, Run, files_of, joined
from ..reading.object_file import opened

OPTIONS = frozenset({"key", "fields"})
BATCH_BYTES = 8 * 2**20
"""Bytes of rows that are decoded at once, about."""
RUN_ROWS = 65_536
"""Rows of a run."""
_BLOBS = "all_binary"
_ADDRESS = "_rowaddr"
_ROW_BITS = 32
_URLS = ("/", "s3://", "gs://", "az://")
_VERSIONS, _DATA = "_versions/", "data/"
_NAMES = KnownNames[list[list[str]]]()


def look(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the files of the newest version's fragments.

    Raises: MissingDependency without Lance; InvalidStore for a store that it does not open, or files that lie
    elsewhere; Corrupt; StoreError.
    """
    return _readable(store, infos, options, whole=True)


def look_at_complete(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return as `look`, without the fragments of which a file is not there. Raises: as `look`."""
    return _readable(store, infos, options, whole=False)


def names_in(store: Store, infos: Sequence[ObjectInfo], options: Options) -> dict[str, list[str]]:
    """Return key of a fragment's first file -> keys of its files; other files of data, as of old versions, have none.

    Costs an opening of the dataset where it has another version. Raises: as `look`.
    """
    versions = [one for one in infos if one.key.startswith(_VERSIONS)]
    fragments = _NAMES.of(
        store.url,
        versions,
        lambda: [_files(one) for one in _opened(store).get_fragments()] if versions else [],
    )
    nothing = {one.key: list[str]() for one in infos if one.key.startswith(_DATA)}
    return nothing | {files[0]: files for files in fragments}


def _readable(store: Store, infos: list[ObjectInfo], options: Options, *, whole: bool) -> Readable:
    """Return the fragments. whole: refuse a dataset of which a file is not there."""
    here = {info.key: info for info in infos}
    if not any(key.startswith(_VERSIONS) for key in here):
        return Readable([], lambda info: [], lambda run: iter(()))
    dataset = _opened(store)
    with _told(store.url):
        schema = dataset.scanner(blob_handling=_BLOBS).projected_schema
        names = {one.fragment_id: _files(one) for one in dataset.get_fragments()}
    files, waiting = files_of({keys[0]: keys for keys in names.values()}, here)
    if whole and waiting:
        raise InvalidStore(
            f"{store.url}: its newest version has the file {min(waiting.values())}, which does not lie there"
        )
    found = [_Fragment(number, files[keys[0]]) for number, keys in names.items() if keys[0] in files]
    reader = _Reader(store, dataset, schema, {one.files[0].key: one for one in found}, options)
    return Readable([one.info for one in found], reader.runs, reader.samples, columns=reader.agreed)


def _opened(store: Store) -> Any:
    """Return the newest version of the dataset of a place. Raises: as `look`."""
    if not store.url.startswith(_URLS):
        raise InvalidStore(
            f"{store.url}: Lance opens folders, s3://, gs:// and az:// alone; copy it to one of these"
        )
    with _told(store.url):
        return _lance().dataset(store.url, storage_options=_server(store.url))


class _Fragment(NamedTuple):
    """A fragment: one file or several, with columns that were added, and one of deleted rows."""

    number: int
    """Number in the dataset."""
    files: list[ObjectInfo]
    """Its files."""

    @property
    def info(self) -> ObjectInfo:
        """The fragment as one object."""
        return joined(self.files)


def _server(url: str) -> dict[str, str]:
    """Return Lance's options for the server of a bucket of S3, as our own stores find it. Raises: InvalidStore."""
    if not url.startswith("s3://"):
        return {}
    config, _ = s3_config(url, {})
    found: dict[str, str] = {name: str(config[name]) for name in ("endpoint", "region") if name in config}
    found["allow_http"] = str(found.get("endpoint", "").startswith("http://")).lower()
    return found


def _files(fragment: Any) -> list[str]:
    """Return the keys of a fragment's files."""
    deleted = fragment.deletion_file()
    return [f"{_DATA}{one.path}" for one in fragment.data_files()] + ([deleted] if deleted else [])


class _Reader:
    """Reads the fragments of one version of a dataset; used by many threads."""

    def __init__(
        self, store: Store, dataset: Any, schema: Any, fragments: dict[str, _Fragment], options: Options
    ) -> None:
        """fragments: by the key of their first file."""
        self._store, self._dataset, self._schema = store, dataset, schema
        self._fragments, self._options = fragments, options
        self.agreed = ColumnAgreement()

    def runs(self, info: ObjectInfo) -> Iterator[Run]:
        """Yield runs of rows. Raises: Corrupt; InvalidSample for columns that cannot be taken."""
        self.agreed.check(info.key, TableRows(self._schema, Features(), self._options, info.key).columns)
        with _told(info.key):
            rows = self._opened(info).physical_rows
        for first in range(0, rows, RUN_ROWS):
            stop = min(rows, first + RUN_ROWS)
            yield Run(info, first, stop, (stop - first) * max(1, info.nbytes // rows))

    def samples(self, run: Run) -> Iterator[ReadSample]:
        """Yield the samples of a run. Raises: InvalidSample with the row; Corrupt; Changed; StoreError."""
        fragment = self._fragments[run.info.key]
        for part in fragment.files:
            with opened(self._store, part) as file:
                file.read(1)  # Lance knows nothing of change tokens
        rows = TableRows(self._schema, Features(), self._options, run.info.key)
        begin, end = ((fragment.number << _ROW_BITS) + row for row in (run.first, run.stop))
        with _told(run.info.key):
            scanner = self._opened(run.info).scanner(
                columns=rows.columns_read,
                with_row_address=True,
                batch_size_bytes=BATCH_BYTES,
                batch_readahead=1,
                blob_handling=_BLOBS,
                filter=f"{_ADDRESS} >= {begin} AND {_ADDRESS} < {end}",
            )
            batches = iter(scanner.to_batches())
        while True:
            with _told(run.info.key):
                batch = next(batches, None)
            if batch is None:
                return
            for first, some in _neighbours(batch):
                yield from rows.samples(some, first)

    def _opened(self, info: ObjectInfo) -> Any:
        return self._dataset.get_fragment(self._fragments[info.key].number)


def _neighbours(batch: Any) -> Iterator[tuple[int, Any]]:
    """Yield rows without a deleted one between them, with the number that the first has in its fragment."""
    numbers = batch.column(_ADDRESS).to_numpy() & (2**_ROW_BITS - 1)
    plain, start = batch.drop_columns([_ADDRESS]), 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield int(numbers[start]), plain.slice(start, at - start)
            start = at


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Raise what Lance raises with a name: errors of this machine pass. Raises: Corrupt; NotSupported."""
    try:
        yield
    except PenstockError:
        raise
    except NotImplementedError as error:
        raise NotSupported(f"{name}: Lance does not read a feature that it uses: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{name}: Lance cannot read it: {error}") from error
    except BaseException as error:  # a panic of Rust is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise Corrupt(f"{name}: Lance cannot read it: {error}") from error


def _lance() -> Any:
    try:
        import lance
    except ImportError as error:
        raise MissingDependency(
            "datasets of Lance are read by pylance: pip install 'penstock-data[lance]'"
        ) from error
    return lance
