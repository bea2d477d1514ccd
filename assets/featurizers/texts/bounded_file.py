"""Read a file of a tokenizer or template, within a bound on its size."""

import stat
from pathlib import Path

from loader.errors import InvalidSpec


def read_bounded(path: Path, name: str, max_bytes: int) -> bytes:
    """Return the bytes of a regular file; `name` begins the message. Raises: InvalidSpec."""
    try:
        status = path.stat()
        # Before it is opened: a named pipe blocks its reader, and a device has no end.
        if not stat.S_ISREG(status.st_mode):
            raise InvalidSpec(
                f"{name} is not a regular file", what="file", where=path, accepted="a regular file"
            )
        if status.st_size > max_bytes:
            raise InvalidSpec(
                f"{name} has {status.st_size:,} bytes; at most {max_bytes:,}",
                what="size",
                where=path,
                given=status.st_size,
                accepted=max_bytes,
            )
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise InvalidSpec(
            f"{name} cannot be read: {error.strerror}. Each machine that computes features needs it",
            what="file",
            where=path,
            given=error.strerror,
        ) from error
    if len(data) > max_bytes:
        raise InvalidSpec(
            f"{name} grew to more than {max_bytes:,} bytes while it was read",
            what="size",
            where=path,
            given=len(data),
            accepted=max_bytes,
        )
    return data
