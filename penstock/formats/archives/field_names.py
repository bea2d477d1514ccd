"""Fields that follow from file names: files of macOS that are none, and a bound on their number."""

import re
import threading

from loader.errors import InvalidSample

MOST_FIELDS = 100
"""Most fields that file names may make. Titles with dots make one field per sample."""
MACOS = "files of macOS (._*, .DS_Store, __MACOSX/) are ignored"
_MACOS = re.compile(r"(^|/)(\._[^/]*|\.DS_Store|__MACOSX/.*)$", re.DOTALL)
_NAMED = 3
"""Fields that an error names."""


def is_of_macos(name: str) -> bool:
    """Return whether a Mac wrote this file beside others: Finder's settings, or resources as AppleDouble."""
    return _MACOS.search(name) is not None


class FieldNames:
    """The distinct fields of one source's archives; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._member_of = dict[str, str]()

    def add(self, field: str, member: str) -> None:
        """Count a field. member: file name that makes it. Raises: InvalidSample for more than `MOST_FIELDS`."""
        if field in self._member_of:
            return
        with self._lock:
            self._member_of[field] = member
            if len(self._member_of) <= MOST_FIELDS:
                return
            examples = list(self._member_of.items())[-_NAMED:]
        named = ", ".join(f"{name!r} ({of!r})" for name, of in examples)
        raise InvalidSample(
            f"file names make more than {MOST_FIELDS} fields, such as {named}: a key ends at the first dot of the file "
            "name, and the field is the rest. Rename files whose titles have dots",
            what="fields",
            given=[name for name, _ in examples],
            accepted=MOST_FIELDS,
        )
