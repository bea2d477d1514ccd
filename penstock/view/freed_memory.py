"""Memory of a batch, given back to the system after it: C's allocator keeps that of threads."""

import ctypes


def give_back() -> None:
    """Return freed memory to the system, where the C library can; costs milliseconds.

    256 photos and their tensors are 300 MiB. glibc keeps such values of threads in heaps of their own, which grow.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)
