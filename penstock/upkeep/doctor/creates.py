"""Probe conditional creates, on which every promise about the history rests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from loader.errors import AlreadyExists, InvalidStore

from .finding import Finding, fail, ok
from .scratch import Scratch

WRITERS = 16
ROUNDS = 4
ELSEWHERE = (
    "publish elsewhere: two writers here could both believe they had won, and a version be lost. S3, GCS, Azure, Ceph "
    "and POSIX disks create atomically; `rclone serve s3`, s3rver and gateways that ignore If-None-Match do not"
)


def creates(scratch: Scratch) -> Iterator[Finding]:
    """Check that a second create of a key fails, in turn and in parallel. 3 requests, and 2 per writer and round."""
    try:
        yield _in_turn(scratch)
    except InvalidStore as error:  # the backend states that it has no atomic create
        yield fail("create-only", str(error), ELSEWHERE)
        return
    yield _at_once(scratch)


def _in_turn(scratch: Scratch) -> Finding:
    key = scratch.key("create/second")
    scratch.store.put_if_absent(key, b"first")
    try:
        scratch.store.put_if_absent(key, b"second")
    except AlreadyExists:
        held = scratch.store.get(key).data
        if held == b"first":
            return ok("create-only", "a second create of a key is refused, and changes nothing")
        return fail("create-only", f"a refused create replaced the object: it holds {held!r}", ELSEWHERE)
    return fail(
        "create-only", "a second create of a key replaced the first: creates are not conditional", ELSEWHERE
    )


def _at_once(scratch: Scratch) -> Finding:
    check = "creates at once"
    with ThreadPoolExecutor(WRITERS) as threads:
        for number in range(ROUNDS):
            key = scratch.key(f"create/{number}")
            start = Barrier(WRITERS)

            def create(writer: int, key: str = key, start: Barrier = start) -> bool:
                start.wait()
                try:
                    scratch.store.put_if_absent(key, b"writer %d" % writer)
                except AlreadyExists:
                    return False
                return True

            won = [writer for writer, created in enumerate(threads.map(create, range(WRITERS))) if created]
            held = scratch.store.get(key).data
            if [b"writer %d" % writer for writer in won] != [held]:
                return fail(
                    check,
                    f"of {WRITERS} creates of one key at once {len(won)} won; the object holds {held!r}",
                    ELSEWHERE,
                )
    return ok(
        check, f"of {WRITERS} creates of one key at once exactly one wins, {ROUNDS} times out of {ROUNDS}"
    )
