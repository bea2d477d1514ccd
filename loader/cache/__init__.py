"""The node cache: pages of remote objects on a local disk, shared by all processes of a machine.

    spec     NodeCache: where it is and how large it may be
    place    the folder: made, or refused
    pages    page files: written whole or not at all, checked at the first use by a process
    claims   who fetches a page that several want at once
    hints    which pages the running loaders need next
    eviction what goes when the limit is reached
    opened   all of it for one loader: every fault is counted and warned about, none is raised
    store    a store that reads through it

There is no lock and no server: any process may be killed at any point, and what it leaves is either a whole page
or a file that is never read and is removed by age. docs/cache.md has the rules in words.
"""

from .spec import NodeCache

__all__ = ["NodeCache"]
