"""Raise Arrow's errors as penstock's, with the name of the object."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from ...errors import Corrupt, NotSupported, PenstockError
from ...modalities.fields import MOST_BYTES, requested_bytes

_DAMAGE = (
    pa.ArrowInvalid,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    pa.ArrowCapacityError,
    pa.ArrowSerializationError,
    EOFError,
    UnicodeDecodeError,  # column names can be invalid UTF-8 too
)
"""Errors that Arrow raised for 24,000 damaged or truncated Parquet and IPC files."""


@contextmanager
def arrow_errors(name: str, *, damaged: str = "is damaged or cut", hint: str = "") -> Iterator[None]:
    """Raise Arrow's errors with the name of the object. damaged: words after the name. hint: what to do.

    Local errors (out of memory, an OSError with an errno) pass unchanged.

    Raises: Corrupt for damaged bytes; NotSupported.
    """
    try:
        yield
    except PenstockError:  # some are OSErrors
        raise
    except pa.ArrowNotImplementedError as error:
        raise NotSupported(
            f"{name} uses a feature that Arrow does not read ({error}); write it again without it",
            what="feature",
            where=name,
            given=str(error),
        ) from error
    except MemoryError as error:
        nbytes = requested_bytes(error)
        if nbytes > MOST_BYTES:
            message = f"{name} {damaged}: it states a size of {nbytes:,} bytes{hint}"
            raise Corrupt(message, what="size", where=name, given=nbytes, accepted=MOST_BYTES) from error
        raise MemoryError(f"{name}: there is no memory to read it: {error}") from error
    except _DAMAGE as error:
        message = f"{name} {damaged}: {error}{hint}"
        raise Corrupt(message, what="Arrow data", where=name, given=str(error)) from error
    except OSError as error:
        if error.errno is not None:  # of the machine; Arrow's own have none
            raise
        message = f"{name} {damaged}: {error}{hint}"
        raise Corrupt(message, what="Arrow data", where=name, given=str(error)) from error
