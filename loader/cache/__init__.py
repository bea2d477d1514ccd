"""The node cache: pages of remote objects on a local disk, shared by all processes of a machine.

    spec:         NodeCache: where it is and how large it may be
    folder:       the folder: made, or refused
    pages:        page files: written whole or not at all, checked at the first use by a process
    claims:       who fetches a page that several want at once
    eviction:     which pages the running loaders need next, and which go at the limit
    node_cache:   all of it for one loader: every fault is counted and warned about, none is raised
    memory:       the same in this process's memory, by the next use of each page (next_use)
    cached_store: a store that reads through it

There is no lock and no server. Any process may be killed at any point. It leaves a whole page, or a file that is never
read and is removed by age. docs/stores.md has the rules in words.
"""

from .spec import NodeCache

__all__ = ["NodeCache"]
