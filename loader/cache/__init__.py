"""The node cache: pages of remote objects on a local disk, shared by all processes of a machine.

There is no lock and no server. Any process may be killed at any point: it leaves a whole page, or a file that is never
read and is removed by age (docs/stores.md).
"""

from .spec import NodeCache

__all__ = ["NodeCache"]
