"""Record batches of Arrow IPC, a file or a stream, by one thread."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

MAGIC = b"ARROW1"
"""The beginning of a file; a stream has another."""


def record_batches(source: Any, begin: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return schema and record batches. source: what Arrow reads. begin: its first bytes. Raises: ArrowException."""
    options = pa.ipc.IpcReadOptions(use_threads=False)
    if begin.startswith(MAGIC):
        file = pa.ipc.open_file(source, options=options)
        return file.schema, (file.get_batch(at) for at in range(file.num_record_batches))
    stream = pa.ipc.open_stream(source, options=options)
    return stream.schema, iter(stream)
