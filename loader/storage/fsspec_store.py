"""Open every other scheme, and any URL with options {"fsspec": {...options of the file system...}}.

Create-only writes need an atomic create: s3fs, gcsfs and adlfs have one, `mode="create"`. Elsewhere fsspec's create
checks existence, then writes, and loses races, so `put_if_absent` raises.

Options besides "fsspec": retry_deadline_s, retry_base_s, retry_cap_s and max_concurrency (`spec.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar, Unpack

from ..errors import (
    AlreadyExists,
    Changed,
    Corrupt,
    InvalidStore,
    ObjectNotFound,
    PenstockError,
    StoreError,
    Transient,
)
from .disk.folder_files import upload_size
from .disk.store import open_local
from .fsspec_filesystem import (
    atomic_create,
    change_token,
    filesystem_errors,
    lacks_bucket,
    look_for_bucket,
    modified_us,
    open_filesystem,
    strips,
    translate,
)
from .requests import Retrier
from .spec import RETRY_OPTIONS, Opened, StoreSpec, store_runtime, store_spec
from .store import (
    Blob,
    ByteRange,
    ObjectInfo,
    ReadLimits,
    Refuse,
    Store,
    check_key,
    check_prefix,
    check_span,
    key_fault,
    log_refusals,
)
from .stream import open_reader, plan_reads, slice_reads
from .threads import check_fork, fork_token

T = TypeVar("T")

WHOLE_READ_TRIES = 5
SINGLE_PUT_BYTES = 64 * 2**20  # a create-only write is one request, never in parts


def open_fsspec(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Open any URL through fsspec. Raises: InvalidStore; MissingDependency."""
    fsspec_options = options.get("fsspec") or {}
    unknown = sorted(set(options) - {"fsspec", *RETRY_OPTIONS})
    if unknown or not isinstance(fsspec_options, Mapping):
        raise InvalidStore(
            f"{spec.url}: {unknown or 'fsspec'} not understood; the file system's options go under one key, "
            f'{{"fsspec": {{...}}}}, beside {", ".join(RETRY_OPTIONS)}',
            what="options",
            where=spec.url,
            given=unknown,
        )
    if ("::" not in url and url.split("://", 1)[0] in ("file", "local")) or "://" not in url:
        return open_local(url, {}, spec)  # our local store creates atomically, fsspec's does not
    return FsspecStore(url, fsspec_options, options, spec)


class FsspecStore(Opened):
    """A store over a file system of fsspec."""

    def __init__(
        self,
        url: str,
        fsspec_options: Mapping[str, object],
        options: Mapping[str, object],
        spec: StoreSpec,
    ) -> None:
        super().__init__(spec, spec.url.rstrip("/"))
        self._token = fork_token()
        self._runtime = store_runtime(self.url, options)
        self._retrier = Retrier(self._runtime.budget, self._runtime.limiter())
        self._fs, root = open_filesystem(url, fsspec_options, self._runtime.secrets)
        self._base = f"{root.rstrip('/')}/"
        self._create = atomic_create(self._fs)
        any_key = f"{self._base}x"  # only its form counts: nothing is read
        self._strip = strips(self._fs, any_key)
        self._find_bucket = look_for_bucket(self._fs, self._base)
        # A pickle leaves the secrets out. After unpickling, `spec` names the secrets of the first opening, and
        # `options` has none of them, unless a caller adds them. Errors name the missing ones.
        present_secrets = store_spec(url, options).dropped
        self._missing_secrets = tuple(name for name in spec.dropped if name not in present_secrets)

    def get(self, key: str) -> Blob:
        for _ in range(WHOLE_READ_TRIES):
            info = self.head(key)
            try:
                return self.get_range(key, 0, info.nbytes, info.etag)
            except Changed:
                continue  # replaced meanwhile; a `get` pins nothing
        raise Transient(f"cannot read {self.url}/{key}: it is replaced faster than it can be read; try later")

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        check_span(key, offset, nbytes)
        path = self._path(key)
        pin = etag if etag is not None else self.head(key).etag

        def attempt() -> Blob:
            data = self._slice(path, offset, nbytes)
            # After the bytes: if the token is unchanged, the bytes are the pinned ones.
            info = self._info(key, path)
            if info.etag != pin:
                raise Changed(
                    f"{self.url}/{key}: the object was replaced since it was first read "
                    f"(etag {pin}, now {info.etag}); open the version again"
                )
            # The second condition is for an empty range, which has its length wherever it lies.
            if len(data) != nbytes or offset > info.nbytes:
                raise Corrupt(f"{self.url}/{key}[{offset}:{offset + nbytes}]: it ends at byte {info.nbytes}")
            return Blob(data, pin)

        return self._call("read", key, attempt)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        reads = plan_reads(spans, **limits)
        pin = etag if etag is not None else self.head(key).etag
        data = [self.get_range(key, *read, pin).data for read in reads]
        if not reads:
            # Without a range to read: an empty read reports an object that is missing or was replaced.
            self.get_range(key, 0, 0, pin)
        return [Blob(piece, pin) for piece in slice_reads(spans, reads, data)]

    def put(self, key: str, data: bytes | memoryview) -> None:
        path = self._path(key)
        self._call("write", key, lambda: self._put(path, bytes(data)))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        """Create an object. Raises: AlreadyExists; InvalidStore if there is no atomic create."""
        path = self._path(key)
        if self._create is None:
            raise InvalidStore(
                f"{self.url} ({type(self._fs).__name__}) cannot create atomically, so publishing there is "
                "refused: two writers could both believe they had won; reading works. Write to a POSIX "
                "directory, s3://, gs:// or az://"
            )
        if len(data) > SINGLE_PUT_BYTES:
            raise InvalidStore(
                f"{self.url}/{key}: {len(data)} bytes; a create takes {SINGLE_PUT_BYTES} at most"
            )
        create = self._create
        whole = bytes(data)

        def attempt() -> None:
            try:
                create(path, whole)
                return
            except filesystem_errors() as error:
                refused = error
            try:
                held = bytes(self._fs.cat_file(path))
            except FileNotFoundError:
                if isinstance(refused, FileExistsError):  # conflict with a concurrent request
                    raise Transient(f"cannot create {self.url}/{key}: the store reports a conflict") from None
                raise refused from refused.__cause__  # its cause may be a missing bucket
            if held != whole:
                raise AlreadyExists(
                    f"{self.url}/{key}: the key already holds another object; choose another key"
                )

        self._call("create", key, attempt)

    def put_file(self, key: str, path: str) -> None:
        target = self._path(key)
        upload_size(path, f"{self.url}/{key}")
        self._call("upload", key, lambda: self._put_file(path, target))

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        return self._call("look up", key, lambda: self._info(key, path))

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self.list_place(prefix, start_after or "", log_refusals(self.url))

    def list_place(
        self, prefix: str, start_after: str, refuse: Refuse, *, seek: bool = False, outside: bool = False
    ) -> Iterator[ObjectInfo]:
        full = self._base + check_prefix(prefix)
        listed = self._call("list", prefix, lambda: self._find(prefix, full[: full.rfind("/")]))
        for path in sorted(listed):
            key = path[len(self._base) :]
            if not path.startswith(full) or not key or key <= start_after:
                continue
            if not (fault := self._fault(key, path)):
                yield _list_entry(key, listed[path])
            elif not key.endswith("/") or listed[path].get("size"):  # otherwise a folder created by a console
                refuse(key, fault)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            try:
                self._call("delete", key, lambda path=path: self._fs.rm_file(path))  # type: ignore[misc]
            except ObjectNotFound:
                continue

    def copy(self, src: str, dst: str) -> None:
        source = self._path(src)
        target = self._path(dst)

        def attempt() -> None:
            self._info(src, source)  # some file systems silently copy nothing
            self._parents(target)
            self._fs.cp_file(source, target)

        self._call("copy", src, attempt)

    def open_stream(self, key: str) -> BinaryIO:
        return open_reader(self, key)

    def close(self) -> None:
        """Do nothing: fsspec closes its sessions with the process."""

    def _path(self, key: str) -> str:
        path = self._base + check_key(key)
        if (used := self._mistaken_path(path)) is not None:
            raise InvalidStore(
                f"{self.url}: {type(self._fs).__name__} would take the key {key!r} for {used!r}, and "
                "could meet another object; choose another key, or open the URL without fsspec options"
            )
        return path

    def _mistaken_path(self, path: str) -> str | None:
        used = path if self._strip is None else self._strip(path)
        return used if used != path else None

    def _fault(self, key: str, path: str) -> str:
        if fault := key_fault(key):
            return fault
        used = self._mistaken_path(path)
        return "" if used is None else f"{type(self._fs).__name__} would take it for {used!r}"

    def _info(self, key: str, path: str) -> ObjectInfo:
        info = self._fs.info(path)
        if info.get("type") == "directory":
            raise ObjectNotFound(f"{self.url}/{key}: a folder; there is no such object")
        return _list_entry(key, info)

    def _slice(self, path: str, offset: int, nbytes: int) -> bytes:
        if nbytes == 0:
            return b""
        try:
            return bytes(self._fs.cat_file(path, start=offset, end=offset + nbytes))
        except filesystem_errors():
            if offset < int(self._fs.info(path)["size"]):
                raise
            return b""  # range after the end: the caller raises

    def _find(self, prefix: str, folder: str) -> dict[str, dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            infos = self._fs.find(folder, detail=True)
        except FileNotFoundError as error:
            if lacks_bucket(error):
                raise
            infos = {}
        if not infos and (missing := self._missing_bucket(f"list {self.url}/{prefix}")) is not None:
            raise missing
        return {f"/{path.lstrip('/')}" if self._base[0] == "/" else path: i for path, i in infos.items()}

    def _parents(self, path: str) -> None:
        if type(self._fs).__module__.split(".")[0] == "fsspec":  # buckets have no folders, sftp and others do
            self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)

    def _put(self, path: str, data: bytes) -> None:
        self._parents(path)
        self._fs.pipe_file(path, data)

    def _put_file(self, local: str, path: str) -> None:
        self._parents(path)
        self._fs.put_file(local, path)

    def _call(self, verb: str, key: str, attempt: Callable[[], T]) -> T:
        check_fork(self._token, self.url)

        def once() -> T:
            try:
                return attempt()
            except PenstockError:  # may be an OSError or ValueError too
                raise
            except filesystem_errors() as error:
                what = f"{verb} {self.url}/{key}"
                translated = self._translate(error, what)
                if isinstance(translated, ObjectNotFound):
                    translated = self._missing_bucket(what) or translated
                fault = type(error).__name__
                raise translated.with_message(str(translated), what="object", given=fault) from None

        return self._retrier.call(once)

    def _missing_bucket(self, what: str) -> StoreError | None:
        """Return the error for a missing bucket when an object is missing; None if the bucket exists."""
        # Looks up the bucket until it was seen once or access is refused.
        find_bucket = self._find_bucket
        if find_bucket is not None:
            try:
                find_bucket()
            except filesystem_errors() as error:
                if lacks_bucket(error):
                    return self._translate(error, what)
            self._find_bucket = None
        return None

    def _translate(self, error: Exception, what: str) -> StoreError:
        return translate(error, what, self._missing_secrets, self._runtime.secrets)


def _list_entry(key: str, info: dict[str, Any]) -> ObjectInfo:
    return ObjectInfo(
        key=key, nbytes=int(info["size"]), etag=change_token(info), modified_us=modified_us(info)
    )
