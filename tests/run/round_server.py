"""An HTTP server of objects that answers in lock step: all that is asked for at once, and only then."""

import re
import threading
from collections import Counter
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers.patience import PATIENCE_S


def kind_of(method, path):
    """What a request is for: the name that rounds are counted by."""
    url = urlsplit(path)
    if "list-type" in parse_qs(url.query):
        return "listing"
    if method != "GET":
        return "lease" if "/leases/" in url.path else method
    # (tables of merged runs are named after their content too)
    kinds = {
        r"penstock\.json$": "marker",
        r"\.index\.parquet$": "index",
        r"/shards(-\w+)?\.parquet$": "parts",
        r"\.tar$": "samples",
        "/log/": "log",
        r"/manifest-\w+\.json$": "manifest",
    }
    return next((kind for pattern, kind in kinds.items() if re.search(pattern, url.path)), url.path)


def round_server(range_server, objects):
    """A server over `objects` (key below /bucket/ -> bytes) whose `rounds` answer what it is asked for."""

    class Handler(range_server.Handler):
        def do_GET(self):
            self.server.rounds.wait(kind_of("GET", self.path))
            query = parse_qs(urlsplit(self.path).query)
            if "list-type" in query:
                return self._answer(200, listing(self.server.objects, query["prefix"][0]))
            return super().do_GET()

        def do_PUT(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.server.rounds.wait(kind_of("PUT", self.path))
            self._answer(200, b"")

        def do_POST(self):  # leases that are given back
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, b"<DeleteResult></DeleteResult>")

        do_DELETE = do_POST

    server = range_server.RangeServer(objects)
    server.RequestHandlerClass, server.rounds = Handler, Rounds()
    return server


def listing(objects, prefix):
    keys = sorted(key for key in objects if key.startswith(unquote(prefix)))
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(objects[key])}</Size>"
        f'<LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>"e"</ETag></Contents>'
        for key in keys
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()


class Rounds:
    """Requests that wait for their round. Until `lock_step` and after `free` none does."""

    def __init__(self):
        self._changed = threading.Condition()
        self._held, self._locked, self._answered = Counter(), False, 0

    def wait(self, kind):
        """Until the request's round is over; called by the threads of the server."""
        with self._changed:
            if not self._locked:
                return
            self._held[kind] += 1
            self._changed.notify_all()
            number = self._answered
            self._changed.wait_for(lambda: self._answered > number or not self._locked)

    def lock_step(self):
        with self._changed:
            self._locked = True

    def answer(self, expected):
        """Wait until exactly these requests are there, kind -> how many, and answer them: one round."""
        with self._changed:
            self._changed.wait_for(lambda: self._held == expected, PATIENCE_S)
            held, self._held = self._held, Counter()
            assert held == expected, f"round {self._answered + 1}: {dict(held)}, expected {dict(expected)}"
            self._answered += 1
            self._changed.notify_all()

    def free(self):
        """Answer everything; what was held and not answered, kind -> how many."""
        with self._changed:
            self._locked = False
            self._changed.notify_all()
            return self._held
