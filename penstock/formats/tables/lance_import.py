"""The newest version of a Lance dataset, fragment by fragment: each live row is a sample.

Lance itself opens the folder, with the credentials in the environment.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from loader.dataset.columnar.arrow_columns import TableRows
from loader.dataset.columnar.choices import SchemaFacts
from loader.dataset.columnar.column_agreement import ColumnAgreement
from loader.errors import Corrupt, InvalidStore, MissingDependency, NotSupported, PenstockError
from loader.modalities.fields import is_machine_fault
from loader.storage import ObjectInfo, Store
from loader.storage.cloud.s3 import s3_config

from ..importer import ColumnarOptions, ImportRun, KnownNames, Readable, ReadSample, group_files, joined
from ..reading.object_file import open_object
from ..reading.stated_counts import WAY_OUT, StatedCounts

OPTIONS = frozenset({"key", "fields"})
BATCH_BYTES = 8 * 2**20
"""Approximate bytes of rows decoded at once."""
RUN_ROWS = 65_536
"""Rows per run."""
_BLOBS = "all_binary"
_ADDRESS = "_rowaddr"
_ROW_BITS = 32
_URLS = ("/", "s3://", "gs://", "az://")
_VERSIONS = "_versions/"
_DATA = "data/"
_NAMES = KnownNames[list[list[str]]]()


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the files of the newest version's fragments.

    Raises: MissingDependency if Lance is not installed; InvalidStore if Lance cannot open the store or a file is gone.
    """
    return _readable(store, infos, options, whole=not options.allow_missing)


def find_complete_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    return _readable(store, infos, options, whole=False)


def names_in(store: Store, infos: Sequence[ObjectInfo], options: ColumnarOptions) -> dict[str, list[str]]:
    """Return key of a fragment's first file -> all its files; other data files map to no keys."""
    # A new version has a new file here, which makes the cache read again.
    versions = [one for one in infos if one.key.startswith(_VERSIONS)]
    fragments = _NAMES.of(
        store.url,
        versions,
        lambda: [_files(one) for one in _open(store).get_fragments()] if versions else [],
    )
    # Files of older versions, and added columns of a fragment, are not objects by themselves.
    nothing = {one.key: list[str]() for one in infos if one.key.startswith(_DATA)}
    return nothing | {files[0]: files for files in fragments}


def _readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions, *, whole: bool) -> Readable:
    here = {info.key: info for info in infos}
    if not any(key.startswith(_VERSIONS) for key in here):
        return Readable([], lambda info: [], lambda run: iter(()))
    dataset = _open(store)
    with _errors_named(store.url):
        schema = dataset.scanner(blob_handling=_BLOBS).projected_schema
        names = {one.fragment_id: _files(one) for one in dataset.get_fragments()}
    files, waiting = group_files({keys[0]: keys for keys in names.values()}, here)
    if whole and waiting:
        first = min(waiting.values())
        message = f"{store.url}: its newest version has the file {first}, which does not lie there; {WAY_OUT}"
        raise InvalidStore(message, what=first, where=store.url)
    stated = StatedCounts()
    for key, missing in sorted(waiting.items()):
        stated.lacks(f"{store.url}: the newest version has the file {missing} of the fragment {key}", missing)
    fragments = [_Fragment(number, files[keys[0]]) for number, keys in names.items() if keys[0] in files]
    reader = _FragmentReader(store, dataset, schema, {one.files[0].key: one for one in fragments}, options)
    infos_there = [one.info for one in fragments]
    return Readable(infos_there, reader.runs, reader.samples, columns=reader.agreed, stated=stated)


def _open(store: Store) -> Any:
    if not store.url.startswith(_URLS):
        message = f"{store.url}: Lance opens only folders, s3://, gs:// and az://; copy it to one of these"
        raise InvalidStore(message, where=store.url, accepted="folders, s3://, gs:// and az://")
    with _errors_named(store.url):
        return _lance().dataset(store.url, storage_options=_server(store.url))


class _Fragment(NamedTuple):
    """One data file, more if columns were added, and perhaps a file of deleted rows."""

    number: int
    files: list[ObjectInfo]

    @property
    def info(self) -> ObjectInfo:
        return joined(self.files)


def _server(url: str) -> dict[str, str]:
    if not url.startswith("s3://"):
        return {}
    config, _ = s3_config(url, {})
    options: dict[str, str] = {name: str(config[name]) for name in ("endpoint", "region") if name in config}
    # Lance refuses plain HTTP unless it is allowed.
    options["allow_http"] = str(options.get("endpoint", "").startswith("http://")).lower()
    return options


def _files(fragment: Any) -> list[str]:
    deleted = fragment.deletion_file()
    return [f"{_DATA}{one.path}" for one in fragment.data_files()] + ([deleted] if deleted else [])


class _FragmentReader:
    def __init__(
        self,
        store: Store,
        dataset: Any,
        schema: Any,
        fragments: dict[str, _Fragment],
        options: ColumnarOptions,
    ) -> None:
        self._store = store
        self._dataset = dataset
        self._schema = schema
        self._fragments = fragments
        self._options = options
        self.agreed = ColumnAgreement()

    def runs(self, info: ObjectInfo) -> Iterator[ImportRun]:
        self.agreed.check(info.key, TableRows(self._schema, SchemaFacts(), self._options, info.key).columns)
        with _errors_named(info.key):
            rows = self._open_fragment(info).physical_rows
        for first in range(0, rows, RUN_ROWS):
            stop = min(rows, first + RUN_ROWS)
            yield ImportRun(info, first, stop, (stop - first) * max(1, info.nbytes // rows))

    def samples(self, run: ImportRun) -> Iterator[ReadSample]:
        fragment = self._fragments[run.info.key]
        for part in fragment.files:
            with open_object(self._store, part) as file:
                file.read(1)  # raises Changed if the object changed, which Lance does not check
        rows = TableRows(self._schema, SchemaFacts(), self._options, run.info.key)
        # A row's address has the fragment above the lowest 32 bits.
        begin, end = ((fragment.number << _ROW_BITS) + row for row in (run.first, run.stop))
        with _errors_named(run.info.key):
            scanner = self._open_fragment(run.info).scanner(
                columns=rows.columns_read,
                with_row_address=True,
                batch_size_bytes=BATCH_BYTES,
                # By default Lance decodes many batches ahead.
                batch_readahead=1,
                blob_handling=_BLOBS,
                filter=f"{_ADDRESS} >= {begin} AND {_ADDRESS} < {end}",
            )
            batches = iter(scanner.to_batches())
        while True:
            with _errors_named(run.info.key):
                batch = next(batches, None)
            if batch is None:
                return
            for first, rows_there in _neighbours(batch):
                yield from rows.samples(rows_there, first)

    def _open_fragment(self, info: ObjectInfo) -> Any:
        return self._dataset.get_fragment(self._fragments[info.key].number)


def _neighbours(batch: Any) -> Iterator[tuple[int, Any]]:
    """Yield runs of consecutive rows, each with its first row's index."""
    # uint64 [rows]: numbers in the fragment, with gaps for deleted rows.
    numbers = batch.column(_ADDRESS).to_numpy() & (2**_ROW_BITS - 1)
    plain = batch.drop_columns([_ADDRESS])
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield int(numbers[start]), plain.slice(start, at - start)
            start = at


@contextmanager
def _errors_named(name: str) -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except NotImplementedError as error:
        raise NotSupported(f"{name}: Lance does not read a feature that it uses: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:
        if is_machine_fault(error):
            raise
        raise Corrupt(f"{name}: Lance cannot read it: {error}") from error
    except BaseException as error:  # a Rust panic is not an Exception
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
