"""Which right is missing, where a store answers 403 to a read.

S3 and Google answer so for an object that is not there, too, when the credentials may not list: whether it is missing
cannot be told then, and reading a root's log needs just that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import Forbidden, StoreError
from .connection import Connection

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_RIGHTS = {  # scheme -> to list, to read
    "s3": ("s3:ListBucket", "s3:GetObject (and kms:Decrypt, where a key of KMS encrypts)"),
    "gs": ("storage.objects.list", "storage.objects.get"),
}


def explained(connection: Connection, scheme: str, path: str, refused: Forbidden) -> Forbidden:
    """`refused`, met while reading `path`, with the right that is missing; costs one listing of a page at most."""
    if scheme not in _RIGHTS or "AccessDenied" not in str(refused):
        return refused
    to_list, to_read = _RIGHTS[scheme]
    folder = path.rpartition("/")[0] or None

    def attempt(obstore: Any, client: Client) -> object:
        return next(obstore.list(client, folder, chunk_size=1), None)

    try:
        connection.call("list", path, attempt)
    except Forbidden:
        return Forbidden(
            f"{refused}; these credentials may not list the bucket, so that a missing object looks forbidden: grant "
            f"{to_list} on it, and {to_read} if reading is refused then"
        )
    except StoreError:
        return refused
    return Forbidden(f"{refused}; these credentials may list and not read: grant {to_read}")
