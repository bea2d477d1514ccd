"""A process that serves a folder as the S3 bucket "bucket", until it is killed. Run as: folder_server.py FOLDER [PORT]

It says its port on a line of its own.
"""

import contextlib
import hashlib
import os
import secrets
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_creating = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path

    def log_message(self, *_):
        pass

    def _key(self):
        return unquote(urlsplit(self.path).path).removeprefix("/bucket").lstrip("/")

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" in query:
            return self._answer(200, self._listing(query.get("prefix", [""])[0]))
        try:
            body = (self.folder / self._key()).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        asked = self.headers.get("Range")
        if asked is None:
            return self._answer(200, body, etag=body)
        low, high = (int(one) for one in asked.removeprefix("bytes=").split("-"))
        piece = body[low : high + 1]
        said = f"bytes {low}-{low + len(piece) - 1}/{len(body)}"
        return self._answer(206, piece, etag=body, content_range=said)

    def do_PUT(self):
        body, path = self.rfile.read(int(self.headers["Content-Length"])), self.folder / self._key()
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.parent / f".new-{secrets.token_hex(8)}"
        new.write_bytes(body)
        with _creating:
            if self.headers.get("If-None-Match") == "*" and path.exists():
                new.unlink()
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            os.replace(new, path)
        return self._answer(200, b"", etag=body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = [piece.split("</Key>")[0] for piece in body.split("<Key>")[1:]]
        for key in keys:
            (self.folder / key.removeprefix("/")).unlink(missing_ok=True)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _listing(self, prefix):
        paths = {
            str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()
        }
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{paths[key].stat().st_size}</Size><ETag>e</ETag>"
            "<LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
            for key in sorted(paths)
            if key.startswith(prefix) and "/.new-" not in key
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()

    def _answer(self, status, body, *, etag=b"", content_range=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(etag).hexdigest()[:32]}"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    server = Server(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
