"""The node cache: pages of remote objects on a local disk, shared by all processes on a machine.

There is no lock and no server. A killed process leaves whole pages and files that are never read and later removed by
age (docs/stores.md).
"""

from .spec import NodeCache

__all__ = ["NodeCache"]
