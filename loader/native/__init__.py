"""Functions on the bytes of samples, keys and headers that release the interpreter's lock: in C, or the same in Python.

`_native.c` runs if it was built (`pip install` builds it if there is a compiler). Otherwise, or with PENSTOCK_NATIVE=0,
`python.py` runs.
"""

import os
from types import ModuleType

from . import python
from .python import IN_MEMORY as IN_MEMORY
from .python import RIGHT as RIGHT
from .python import UNKNOWN_CRC as UNKNOWN_CRC
from .python import UNREAD as UNREAD
from .python import WRONG as WRONG
from .python import NpyHead as NpyHead
from .python import OpenFile as OpenFile


def _choose_module() -> ModuleType:
    if os.environ.get("PENSTOCK_NATIVE") == "0":
        return python
    try:
        from . import _native
    except ImportError:  # installed without a compiler
        return python
    return _native


_verbs = _choose_module()
KIND = "Python" if _verbs is python else f"C, checksums by {_verbs.instructions()}"
crc32c, gather = _verbs.crc32c, _verbs.gather
# By hashlib if the processor has no SHA instructions.
PagedSha256: type[python.PagedSha256] = getattr(_verbs, "PagedSha256", python.PagedSha256)
crc32c_each = getattr(_verbs, "crc32c_each", python.crc32c_each)
copy_bytes = getattr(_verbs, "copy_bytes", python.copy_bytes)
copy_pieces = getattr(_verbs, "copy_pieces", python.copy_pieces)
number_pieces = getattr(_verbs, "number_pieces", python.number_pieces)
hash_numbers = getattr(_verbs, "hash_numbers", python.hash_numbers)
hash_texts = getattr(_verbs, "hash_texts", python.hash_texts)  # an older extension lacks it
tar_contents = getattr(_verbs, "tar_contents", python.tar_contents)
ignore_strangers = getattr(_verbs, "ignore_strangers", python.ignore_strangers)
mark_ended = getattr(_verbs, "mark_ended", python.mark_ended)
share_marks = getattr(_verbs, "share_marks", python.share_marks)
resample = getattr(_verbs, "resample", python.resample)
