"""Store a map's fit as `maps/<how>/fit.parquet`, created once, and check it when it is read.

`<how>` names dataset, field, network and numbers, as under `search/`. The table has a row for each anchor: vector, x,
y, cluster, n_samples. Its metadata has the path, the sha256 of the columns, and the id of the version whose vectors it
was fitted to: a takedown in that version deletes it.
"""

import hashlib
import io
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loader.dataset.search.index_record import MOST_NUMBERS, IndexRecord
from loader.dataset.search.segment_reads import footer_facts
from loader.dataset.tables.parquet import SCHEMA_VERSION, UNREADABLE
from loader.errors import AlreadyExists, Corrupt, FormatTooNew, ObjectNotFound
from loader.modalities.fields import is_machine_fault
from loader.storage import Store
from loader.storage.requests import retry_corrupt

from .fit import MOST_ANCHORS, MOST_CLUSTERS, SAMPLED, MapFit

FOLDER = "maps/"
_MOST_BYTES = 2**29
_AGAIN = "run penstock index REF --map --drop, then penstock index REF --map"


def _types(n_dims: int) -> pa.Schema:
    """Return the columns of a fit. n_dims: numbers of each vector."""
    return pa.schema(
        [
            ("vector", pa.binary(4 * n_dims)),
            ("x", pa.uint16()),
            ("y", pa.uint16()),
            ("cluster", pa.uint16()),
            ("n_samples", pa.int64()),
        ]
    )


def map_folder(record: IndexRecord) -> str:
    """Return the folder of a field's map in the root."""
    return f"{FOLDER}{record.name}/"


def fit_path(record: IndexRecord) -> str:
    return f"{map_folder(record)}fit.parquet"


def fit_bytes(
    fit: MapFit,
    record: IndexRecord,
    version_id: str,
) -> bytes:
    """Return the file of a fit. version_id: of the version whose vectors it was fitted to."""
    types = _types(record.numbers)
    vectors = np.ascontiguousarray(fit.anchors, "<f4").tobytes()
    vector_column = pa.FixedSizeBinaryArray.from_buffers(
        types.field("vector").type,
        len(fit.anchors),
        [None, pa.py_buffer(vectors)],
    )
    table = pa.table(
        {
            "vector": vector_column,
            "x": fit.x,
            "y": fit.y,
            "cluster": fit.clusters,
            "n_samples": fit.n_samples,
        },
        schema=types,
    )
    metadata = {
        "penstock.table": "map-fit",
        "penstock.schema": str(SCHEMA_VERSION),
        "penstock.path": fit_path(record),
        "penstock.sha256": _digest(fit),
        "penstock.version": version_id,
    }
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(metadata),
        sink,
        compression="NONE",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    return sink.getvalue()


def _digest(fit: MapFit) -> str:
    hasher = hashlib.sha256()
    columns = (
        (fit.anchors, "<f4"),
        (fit.x, "<u2"),
        (fit.y, "<u2"),
        (fit.clusters, "<u2"),
        (fit.n_samples, "<i8"),
    )
    for values, dtype in columns:
        hasher.update(np.ascontiguousarray(values, dtype).tobytes())
    return hasher.hexdigest()


def put_fit(
    store: Store,
    fit: MapFit,
    record: IndexRecord,
    version_id: str,
) -> MapFit:
    """Store a fit, and return the stored one: another process's fit, if it stored one first. Raises: Corrupt.

    version_id: of the version whose vectors it was fitted to.
    """
    data = fit_bytes(
        fit,
        record,
        version_id,
    )
    # Both processes then place samples on the fit of the first.
    with suppress(AlreadyExists):
        store.put_if_absent(fit_path(record), data)
    stored = read_fit(store, record)
    if stored is None:
        message = f"{fit_path(record)} was deleted while the map was made; run penstock index again"
        raise Corrupt(message, what="fit of a map", where=fit_path(record))
    return stored


def read_fit(store: Store, record: IndexRecord) -> MapFit | None:
    """Return the stored fit of a field's map; None before the first. Raises: Corrupt; FormatTooNew."""
    path = fit_path(record)

    def read() -> MapFit:
        info = store.head(path)
        if info.nbytes > _MOST_BYTES:
            message = f"{path} has {info.nbytes:,} bytes, accepted are {_MOST_BYTES:,}; {_AGAIN}"
            raise Corrupt(message, what="size", where=path, given=info.nbytes, accepted=_MOST_BYTES)
        stored = store.get(path)
        return parse_fit(
            stored.data,
            path,
            record.numbers,
        )

    try:
        return retry_corrupt(read)
    except ObjectNotFound:
        return None


def parse_fit(data: bytes, path: str, n_dims: int | None = None) -> MapFit:
    """Return the fit in a file. n_dims: numbers of each vector; None accepts any. Raises: Corrupt; FormatTooNew."""
    try:
        fit, sha256 = _parse(
            data,
            path,
            n_dims,
        )
        digest = _digest(fit)
        _check(fit)
    except (Corrupt, FormatTooNew):  # ValueErrors too, which keep their own text
        raise
    except (*UNREADABLE, LookupError, TypeError, AttributeError, OverflowError) as error:
        if is_machine_fault(error):
            raise
        message = f"{path} is not a fit of a map ({type(error).__name__} {error}); {_AGAIN}"
        raise Corrupt(message, what="fit of a map", where=path, given=str(error)) from error
    if digest != sha256:
        message = f"{path}: the sha256 of its columns is {digest}, it states {sha256}; {_AGAIN}"
        raise Corrupt(message, what="SHA-256 of the columns", where=path, given=digest, accepted=sha256)
    return fit


def fit_version_id(data: bytes, path: str) -> str:
    """Return the id of the version that a stored fit was made from, or "" if it names none.

    Raises: Corrupt; FormatTooNew.
    """
    try:
        metadata = pq.read_metadata(io.BytesIO(data))
        facts = footer_facts(
            metadata,
            path,
            _AGAIN,
        )
        return facts.get(b"penstock.version", b"").decode()
    except (Corrupt, FormatTooNew):  # ValueErrors too, which keep their own text
        raise
    except (*UNREADABLE, LookupError, TypeError, AttributeError, OverflowError) as error:
        if is_machine_fault(error):
            raise
        raise Corrupt(f"{path} is not a fit of a map ({type(error).__name__} {error}); {_AGAIN}") from error


def _parse(data: bytes, path: str, n_dims: int | None) -> tuple[MapFit, str]:
    """Return a fit and its stated digest. Checks counts before a page is decompressed.

    Raises: Corrupt; FormatTooNew; for a damaged file also errors of pyarrow and numpy, which `parse_fit` translates.
    """
    metadata = pq.read_metadata(io.BytesIO(data))
    facts = footer_facts(metadata, path, _AGAIN)
    schema = metadata.schema.to_arrow_schema()
    if not 1 <= metadata.num_rows <= MOST_ANCHORS:
        raise Corrupt(f"{path} has {metadata.num_rows} anchors, accepted are 1 to {MOST_ANCHORS}; {_AGAIN}")
    if n_dims is None:
        n_dims = schema.field("vector").type.byte_width // 4
    if not 0 < n_dims <= MOST_NUMBERS:
        raise Corrupt(f"{path} has vectors of {n_dims} numbers, accepted are 1 to {MOST_NUMBERS}; {_AGAIN}")
    types = _types(n_dims)
    for name in types.names:
        if schema.field(name).type != types.field(name).type:
            raise Corrupt(
                f"{path} has a column {schema.field(name)}, needed is {types.field(name)}; {_AGAIN}"
            )
    nbytes = 0
    for number in range(metadata.num_row_groups):
        nbytes += metadata.row_group(number).total_byte_size
    # float32 vectors and 64 bytes for the other columns. A file that states more is not decompressed.
    most_bytes = 2**20 + metadata.num_rows * (4 * n_dims + 64)
    if nbytes > most_bytes:
        raise Corrupt(f"{path} has {nbytes:,} bytes of columns, accepted are {most_bytes:,}; {_AGAIN}")
    reader = pq.ParquetFile(
        io.BytesIO(data),
        metadata=metadata,
        page_checksum_verification=True,
        pre_buffer=False,
    )
    table = reader.read(columns=types.names, use_threads=False)
    # numpy would turn a null into NaN, or into any number.
    if any(column.null_count for column in table.columns):
        raise Corrupt(f"{path} has an anchor without a value; {_AGAIN}")
    vectors = table["vector"].combine_chunks()
    anchors = np.frombuffer(
        b"".join(vectors.to_pylist()),
        "<f4",
    )
    fit = MapFit(
        anchors=anchors.reshape(-1, n_dims),
        x=table["x"].to_numpy(),
        y=table["y"].to_numpy(),
        clusters=table["cluster"].to_numpy(),
        n_samples=table["n_samples"].to_numpy(),
    )
    return fit, facts[b"penstock.sha256"].decode()


def _check(fit: MapFit) -> None:
    """Raise ValueError unless anchors have length 1, and clusters and counts are in range."""
    length = np.sqrt(np.square(fit.anchors).sum(axis=1))
    if not np.allclose(length, 1, atol=1e-3):
        raise ValueError("an anchor has not the length 1")
    if fit.clusters.max() >= MOST_CLUSTERS:
        raise ValueError(f"a cluster has the number {fit.clusters.max()}")
    if fit.n_samples.min() < 0 or fit.n_samples.max() > SAMPLED:
        raise ValueError("an anchor has a count of samples out of range")
