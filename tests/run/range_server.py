"""A real HTTP server of objects, which may hold its answers back."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class RangeServer(ThreadingHTTPServer):
    """`objects`: key -> bytes, below /bucket/. before(key, nbytes) is called before each answer, in its thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, objects):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.before = objects, lambda key, nbytes: None
        self.options = {
            "key": "k",
            "secret": "s",
            "endpoint_url": f"http://127.0.0.1:{self.server_address[1]}",
        }
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self):
        self.shutdown()
        self.server_close()
        self.thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.partition("?")[0]  # a signature may follow
        body = self.server.objects.get(path.removeprefix("/bucket/"))
        if body is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        asked = self.headers.get("Range")
        if asked is None:
            return self._answer(200, body)
        low, high = (int(one) for one in asked.removeprefix("bytes=").split("-"))
        piece = body[low : high + 1]
        self.server.before(path, len(piece))
        return self._answer(206, piece, f"bytes {low}-{low + len(piece) - 1}/{len(body)}")

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")

    do_DELETE = do_PUT

    def _answer(self, status, body, content_range=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a client that was stopped has gone
            self.wfile.write(body)
