"""Errors of Arrow as ours: damaged bytes, or features that Arrow lacks."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from ...errors import Corrupt, NotSupported, PenstockError

_DAMAGE = (
    pa.ArrowInvalid,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    pa.ArrowCapacityError,
    pa.ArrowSerializationError,
    EOFError,
    UnicodeDecodeError,  # names of columns too
)
"""Errors that 24,000 flipped bits and cuts of Parquet and IPC raised. OSError needs a closer look."""


@contextmanager
def arrow_errors(name: str, *, damaged: str = "is damaged or cut", hint: str = "") -> Iterator[None]:
    """Raise Arrow's errors with the name of what is read. damaged: words behind the name. hint: what to do.

    Errors of this machine (no memory, an OSError with a number) pass unchanged.

    Raises: Corrupt for damaged bytes; NotSupported.
    """
    try:
        yield
    except PenstockError:  # some are OSErrors
        raise
    except pa.ArrowNotImplementedError as error:
        raise NotSupported(
            f"{name} uses a feature that Arrow does not read ({error}); write it again without it"
        ) from error
    except MemoryError as error:
        raise MemoryError(f"{name}: there is no memory to read it: {error}") from error
    except _DAMAGE as error:
        raise Corrupt(f"{name} {damaged}: {error}{hint}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise Corrupt(f"{name} {damaged}: {error}{hint}") from error
