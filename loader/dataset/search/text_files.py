"""Folded texts in local files, mapped: a process that searches many versions keeps little memory of its own."""

import os
import secrets
from contextlib import suppress

import pyarrow as pa

from ...storage.disk.scratch import on_scratch
from .embedding_code_files import scratch_folder

LEAST_MAPPED_BYTES = 2**20
"""Texts of fewer bytes stay in memory."""


def map_texts(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return equal texts, mapped from a file that ends with them. Raises: StoreError if the disk is full."""
    if texts.nbytes < LEAST_MAPPED_BYTES:
        return texts
    schema = pa.schema([("text", pa.string())])
    with on_scratch(
        None,
        "while texts were written for a search",
        room_for="the texts",
        again="search again",
    ):
        path = os.path.join(scratch_folder(), f"{secrets.token_hex(8)}.texts")
        try:
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for chunk in texts.chunks:
                    writer.write_batch(pa.record_batch([chunk], schema))
            with pa.memory_map(path) as source:
                options = pa.ipc.IpcReadOptions(use_threads=False)
                table = pa.ipc.open_file(source, options=options).read_all()
        finally:
            # The mapping keeps the bytes. A process that is killed leaves none.
            with suppress(OSError):
                os.unlink(path)
    return table["text"]
