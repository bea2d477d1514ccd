"""The least that bytes of a file cost through a loopback socket: the kernel's work without a protocol."""

import os
import socket
import tempfile
import threading
import time

REQUEST_BYTES = 300
"""Size of a request for one page, of `Range` and headers."""
OFFSET_STEP = 1009


def bare_sockets_us(reads: int, nbytes: int, per_request: int) -> float:
    """Return the processor time of both sides for each read of a range, in us.

    reads: ranges in all. nbytes: size of a range. per_request: ranges that one request brings.
    """
    with tempfile.TemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as listener:
        file.write(os.urandom(2 * nbytes))
        file.flush()
        reader = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        with reader, server:
            for side in (reader, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            requests = reads // per_request
            begun_s = time.process_time()
            thread = threading.Thread(
                target=_serve, args=(server, file.fileno(), requests, nbytes, per_request)
            )
            thread.start()
            _read(reader, requests, nbytes * per_request)
            thread.join()
            return (time.process_time() - begun_s) / (requests * per_request) * 1e6


def _serve(
    server: socket.socket,
    descriptor: int,
    requests: int,
    nbytes: int,
    per_request: int,
) -> None:
    # For 100 kB over loopback faster than `sendfile`.
    memory = memoryview(bytearray(nbytes))
    for request in range(requests):
        server.recv(REQUEST_BYTES, socket.MSG_WAITALL)
        for number in range(per_request):
            offset = (request + number) * OFFSET_STEP % nbytes
            os.preadv(descriptor, [memory], offset)
            server.sendall(memory)


def _read(reader: socket.socket, requests: int, answer_bytes: int) -> None:
    for _ in range(requests):
        reader.sendall(bytes(REQUEST_BYTES))
        # New memory for each answer, because its reader keeps it.
        answer = bytearray(answer_bytes)
        view = memoryview(answer)
        while view:
            count = reader.recv_into(view, len(view), socket.MSG_WAITALL)
            view = view[count:]
