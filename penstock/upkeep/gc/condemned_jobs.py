"""Keep the objects of data jobs whose folder changed since a pass condemned it."""

from collections.abc import Mapping, Sequence

from loader.storage import Store

from .clients import Clients, job_folder, job_folders, sign_of_job

DESCRIPTION = "job.json"
"""Name of a data job's description, which is deleted last."""


class CondemnedJobs:
    """Folders of data jobs that a pass condemned. Memory: 0.2 KB per object in them."""

    def __init__(self, store: Store, clients: Clients) -> None:
        self._store = store
        self._clients = clients
        # Folder -> its objects when the first of them was due; not of folders that had changed by then.
        self._condemned_objects: dict[str, Mapping[str, str]] = {}
        # Folders that had changed when the first of their objects was due.
        self._changed: set[str] = set()

    def active_keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that stay because their job's folder changed since it was condemned.

        A description stays while its folder has other objects: without it, results could seem to be another job's.
        """
        folders = {folder for key in keys if (folder := job_folder(key))}
        if not folders:
            return []
        objects_of_folders = job_folders(self._store)
        to_delete = set(keys)
        stays: set[str] = set()
        for folder in folders:
            objects_now = objects_of_folders.get(folder, {})
            if self._has_changed(folder, objects_now):
                # A live process works there: nothing of it may go.
                stays |= objects_now.keys()
            elif not objects_now.keys() <= to_delete:
                stays.add(f"{folder}{DESCRIPTION}")
        return [key for key in keys if key in stays]

    def _has_changed(self, folder: str, objects_now: Mapping[str, str]) -> bool:
        """Return whether a folder changed since it was condemned, except by deletions. objects_now: key -> token."""
        if folder in self._changed:
            return True
        if folder not in self._condemned_objects:
            # A sign is a hash of the folder's objects.
            condemned_sign, _ = self._clients.signs.states[folder]
            if sign_of_job(objects_now) != condemned_sign:
                self._changed.add(folder)
                return True
            self._condemned_objects[folder] = objects_now
        # The sweep itself deletes objects, so that fewer are no change.
        return not objects_now.items() <= self._condemned_objects[folder].items()
