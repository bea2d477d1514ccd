"""Answers of a node's server about near checkpoints: parts, indexes and markers of its near folder.

A name has one of three strict forms, so that nothing else that a caller sends becomes part of a path. Bodies go to the
disk piece by piece, at most AT_ONCE at a time: the other threads stay free for pages.
"""

import base64
import json
import mmap
import os
import re
import threading

from ...cores import lower_thread_priority
from ...errors import StoreError
from ...storage.threads import DaemonPool
from ..spec import NodeCache
from .exchange import Exchange
from .heads import CHECKSUM, BadHead, page_answer_head
from .near_files import (
    FILE_BYTES,
    MARKER_BYTES,
    PART,
    RUN,
    STEP,
    NearFiles,
    WrongFile,
    marker_key,
    near_folder,
    part_key,
)

PREFIX = "/v1/near"
AT_ONCE = 8
"""Most files that are received at a time. One more is answered 503, before its body."""
RECEIVE_BYTES = 4 * 2**20
"""Bytes of a file in memory. Writes of so many bypass the page cache."""
MARKER = "marker"
"""Last segment of a marker's path."""

_RUN_PATH = re.compile(rf"{PREFIX}/({RUN})")
_STEP_PATH = re.compile(rf"{PREFIX}/({RUN})/({STEP})")
_FILE_PATH = re.compile(rf"{PREFIX}/({RUN})/({STEP})/({PART}|{MARKER})")
_CRC32C = re.compile(r"[0-9a-f]{8}")


class NearAnswers:
    """Answers requests for the near folder of one node. Thread-safe."""

    def __init__(self, spec: NodeCache) -> None:
        self._files = NearFiles(near_folder(spec))
        self._is_private = not spec.shared
        self._receiving = threading.Semaphore(AT_ONCE)
        self._receivers = DaemonPool(AT_ONCE, "penstock-near-receipt")

    def answer(self, exchange: Exchange) -> None:
        """Answer one request below PREFIX. Raises: BadHead; BrokenExchange; OSError."""
        if not self._is_private:
            raise BadHead(403, "near checkpoints need a cache folder of one user, without shared=True")
        try:
            self._answer(exchange)
        except WrongFile as error:
            raise BadHead(400, str(error)) from error
        except StoreError as error:
            raise BadHead(507, f"the disk of this node failed: {error}") from error

    def _answer(self, exchange: Exchange) -> None:
        head = exchange.head
        file = _FILE_PATH.fullmatch(head.path)
        if file is not None and head.method == "PUT":
            self._store(
                exchange,
                file[1],
                int(file[2]),
                file[3],
            )
            return
        if file is not None and head.method == "GET":
            self._send(
                exchange,
                file[1],
                int(file[2]),
                file[3],
            )
            return
        step = _STEP_PATH.fullmatch(head.path)
        if step is not None and head.method == "DELETE":
            name = step[1]
            number = int(step[2])
            nbytes = self._files.delete(name, number)
            exchange.send_text(200, str(nbytes))
            return
        run = _RUN_PATH.fullmatch(head.path)
        if run is not None and head.method == "GET":
            text = self._run(run[1])
            exchange.send_bytes(text)
            return
        if head.path == PREFIX and head.method == "GET":
            text = self._runs()
            exchange.send_bytes(text)
            return
        raise BadHead(404, f"{head.method} of this path is not served: expected {PREFIX}/RUN/STEP/NAME")

    def _store(
        self,
        exchange: Exchange,
        run: str,
        step: int,
        name: str,
    ) -> None:
        """Receive a file into the near folder. name: of a part or an index, or MARKER. Raises: BadHead; StoreError."""
        # Each refusal comes before the body: `Expect: 100-continue` then saves the caller 64 MiB.
        head = exchange.head
        checksum = head.headers.get(CHECKSUM, "")
        if not _CRC32C.fullmatch(checksum):
            raise BadHead(400, f"the header {CHECKSUM} is missing or no CRC-32C in 8 hex digits")
        most = FILE_BYTES
        if name == MARKER:
            most = MARKER_BYTES
        if not 0 < head.nbytes <= most:
            raise BadHead(413, f"{name} may have 1 to {most} bytes; save with a smaller part_bytes")
        free = self._files.free_bytes()
        if head.nbytes > free:
            free = max(0, free)
            raise BadHead(507, f"the disk of this node has {free:,} bytes for near checkpoints")
        # Not waiting: 16 senders that wait would leave no thread for pages.
        if not self._receiving.acquire(blocking=False):
            raise BadHead(503, f"this node receives {AT_ONCE} files already: ask again")
        try:
            # In a thread of its own: `_receive` lowers its thread's priority, which cannot be raised again.
            receipt = self._receivers.submit(
                self._receive,
                exchange,
                _key(run, step, name),
                int(checksum, 16),
            )
            receipt.result()
        finally:
            self._receiving.release()
        exchange.send_text(200, "stored")

    def _receive(
        self,
        exchange: Exchange,
        key: str,
        checksum: int,
    ) -> None:
        # A training's ranks are on this machine, and a step must not wait for another node's save.
        lower_thread_priority()
        # It begins at a page, as writes that bypass the page cache need it.
        memory = mmap.mmap(-1, min(RECEIVE_BYTES, exchange.head.nbytes))
        self._files.write(
            key,
            exchange.head.nbytes,
            checksum,
            exchange.body(memoryview(memory)),
        )

    def _send(
        self,
        exchange: Exchange,
        run: str,
        step: int,
        name: str,
    ) -> None:
        """Send a range of a file, or its size without a range."""
        cut = exchange.head.byte_range()
        opened = self._files.open(_key(run, step, name))
        if opened is None:
            raise BadHead(404, "there is no such file here")
        descriptor, nbytes = opened
        try:
            if cut is None:
                exchange.send_text(200, str(nbytes))
                return
            start, stop = cut
            if stop > nbytes:
                raise BadHead(416, f"the file has {nbytes} bytes")
            exchange.send_file(
                page_answer_head(start, stop, nbytes),
                descriptor,
                start,
                stop - start,
            )
        finally:
            os.close(descriptor)

    def _run(self, name: str) -> bytes:
        """Return the files of a run, and its newest markers in base64, as JSON."""
        run = self._files.run(name)
        markers: dict[str, str] = {}
        for step, data in run.markers.items():
            encoded = base64.b64encode(data)
            markers[f"{step:012d}"] = encoded.decode()
        body = {
            "markers": markers,
            "files": run.files,
        }
        text = json.dumps(body)
        return text.encode()

    def _runs(self) -> bytes:
        """Return the steps of all runs, as JSON."""
        runs: list[dict[str, object]] = []
        for name in self._files.runs():
            steps = self._files.steps(name)
            runs.append({"run": name, "steps": steps})
        text = json.dumps({"runs": runs})
        return text.encode()


def _key(run: str, step: int, name: str) -> str:
    if name == MARKER:
        return marker_key(run, step)
    return part_key(run, step, name)
