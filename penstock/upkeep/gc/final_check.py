"""Check condemned objects just before their deletion: a reader, a tag or a job may need them again."""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root
from loader.dataset.log.leases import Leases
from loader.dataset.log.state import VersionRecord
from loader.storage import Store
from loader.storage.disk.unlisted_files import is_unfinished

from ...search.overlap.protected_texts import FOLDER
from .clients import Clients, job_folder, job_folders, sign_of_job
from .needed import Unreadable, protected, references
from .sweep import CARD, DESCRIPTION, PROTECTED, Check


def final_check(
    root: Root,
    clients: Clients,
    leases: Leases,
    kept: Mapping[str, VersionRecord],
    condemned: Collection[str],
    *,
    mirror: bool,
) -> Check:
    """Return the final check: a filter that drops objects that are needed again. It rereads log and leases each time.

    kept: versions that stayed when the plan was made. condemned: ids of retired versions that tags, aliases and leases
    do not keep. mirror: True for a mirror's root.

    Costs a listing and a request if nothing changed, and a listing of jobs if one is condemned.
    """
    jobs = _Jobs(root.store, clients)

    def check(ripe: pa.Table) -> pa.Table:
        state = root.log.refresh()
        living = clients.living(leases.read())
        protected_versions = protected(state, living, condemned)
        # A tag, a hold or a lease may have claimed a version since the plan was made.
        returned = [record for id, record in protected_versions.items() if id not in kept]
        keys = ripe["key"].to_pylist()
        needed = [lease.key for lease in living]
        needed += jobs.active_keys(keys)
        for key in keys:
            is_of_version = key.startswith(("cards/", FOLDER)) and not is_unfinished(key)
            if is_of_version and _key_version(key) in protected_versions:
                needed.append(key)
        needed_keys = pa.array(needed, pa.large_string())
        if returned:
            lost = Unreadable(root.store, state, condemned, mirror=mirror)
            live = references(root.store, returned, lost)
            needed_keys = pa.concat_arrays([needed_keys, live.paths])
        is_needed = pc.is_in(ripe["key"], value_set=needed_keys)
        return ripe.filter(pc.invert(is_needed))

    return check


class _Jobs:
    """Condemned data-job folders. Memory: 0.2 KB per object in them."""

    def __init__(self, store: Store, clients: Clients) -> None:
        self._store = store
        self._clients = clients
        # folder -> its objects when the first of them was due; {} if it had changed by then, so that all stay
        self._first_objects: dict[str, dict[str, str]] = {}

    def active_keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that stay because their job's folder changed since it was condemned.

        A description stays while its folder has other objects: without it, results could seem to be another job's.
        """
        folders = {folder for key in keys if (folder := job_folder(key))}
        if not folders:
            return []
        now = job_folders(self._store)  # folder -> its objects
        going = set(keys)
        stays: set[str] = set()
        for folder in folders:
            present = now.get(folder, {})
            if folder not in self._first_objects:
                # A folder that changed since the pass that condemned it has a live process: nothing of it may go.
                condemned_sign, *_ = self._clients.signs.states[folder]
                is_unchanged = sign_of_job(present) == condemned_sign
                first_objects: dict[str, str] = {}
                if is_unchanged:
                    first_objects = present
                self._first_objects[folder] = first_objects
            has_only_known = present.items() <= self._first_objects[folder].items()
            if not has_only_known:
                stays |= present.keys()
            elif not present.keys() <= going:
                stays.add(f"{folder}{DESCRIPTION}")
        return [key for key in keys if key in stays]


def _key_version(key: str) -> str:
    """Return the id of the version that a card or a table of shingles belongs to."""
    match = CARD.fullmatch(key) or PROTECTED.fullmatch(key)
    if match is None:
        return ""
    return match.groups()[-1]
