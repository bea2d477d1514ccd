"""Raw objects at their source, which is not the root's."""

from loader.errors import InvalidStore
from loader.storage import open_store


def delete_object(uri: str) -> None:
    """Delete it; one that is not there is no error. Raises: InvalidStore for what is no path or URL; StoreError."""
    place, slash, name = uri.removeprefix("file://").rpartition("/")
    if not slash or not name:
        raise InvalidStore(
            f"{uri!r} is no path or URL of an object, so it cannot be deleted; leave --delete-raw out"
        )
    open_store(place or "/", None).delete_many([name])
