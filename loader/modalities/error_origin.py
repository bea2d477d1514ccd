"""Origin of a library's error: the bytes, this machine, or a bug. Only the first is damage."""

from types import TracebackType

_TRIAL_BYTES = 64 * 2**20
_ALSO_OF_A_BUG = (TypeError, LookupError, ArithmeticError, RuntimeError, AttributeError, NameError)
_PACKAGES = frozenset((__name__.partition(".")[0], "assets", "penstock"))


def is_of_the_machine(error: BaseException) -> bool:
    """Return whether a decoder failed for want of memory, files or a network.

    Pillow's OSErrors about images have no errno. FFmpeg reads from memory, and reports "no memory" also for a header
    that asks for too much; then there is memory left.
    """
    if type(error).__module__.partition(".")[0] == "av":
        return isinstance(error, MemoryError) and not _has_memory()
    return isinstance(error, MemoryError | ConnectionError | TimeoutError) or (
        isinstance(error, OSError) and error.errno is not None
    )


def is_ours(error: BaseException) -> bool:
    """Return whether an error is a bug in this project; libraries' own code raises TypeError for damaged bytes."""
    return isinstance(error, _ALSO_OF_A_BUG) and _raised_in(error.__traceback__) in _PACKAGES


def _raised_in(trace: TracebackType | None) -> str:
    package = ""
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        trace = trace.tb_next
    return package


def _has_memory() -> bool:
    try:
        bytearray(_TRIAL_BYTES)
    except MemoryError:
        return False
    return True
