"""The node cache: pages of remote objects on a local disk, shared by all processes on a machine.

A killed process leaves only complete pages, and stray files without a reader, which are removed once they are old
(docs/stores.md).
"""

from .spec import NodeCache

__all__ = ["NodeCache"]
