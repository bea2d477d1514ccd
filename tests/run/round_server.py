"""An HTTP server of objects that answers in lock step: all that is asked for at once, and only then."""

import re
import threading
from collections import Counter
from urllib.parse import parse_qs, urlsplit

from tests.run.range_server import HEADERS, RangeServer
from tests.servers.patience import PATIENCE_S


def request_kind(method, path):
    """What a request is for: the name that rounds are counted by."""
    url = urlsplit(path)
    if "list-type" in parse_qs(url.query):
        return "listing"
    if method != "GET":
        return "lease" if "/leases/" in url.path else method
    # (tables of merged runs are named after their content too)
    kinds = {
        r"penstock\.json$": "marker",
        r"/plans/.*\.start\.json$": "notes",
        r"/starts/": "start",
        "/plans/": "plan",
        r"\.index\.parquet$": "index",
        r"/shards(-\w+)?\.parquet$": "parts",
        r"\.tar$": "samples",
        "/log/": "log",
        r"/manifest-\w+\.json$": "manifest",
    }
    return next((kind for pattern, kind in kinds.items() if re.search(pattern, url.path)), url.path)


class RoundServer(RangeServer):
    """`objects` as of a RangeServer; `rounds` answer what it is asked for. Writes are taken, and forgotten."""

    def __init__(self, objects):
        self.rounds = Rounds()
        super().__init__(objects)

    def answer(self, request):
        if request.method in ("GET", "PUT"):
            self.rounds.wait(request_kind(request.method, request.target))
        if "list-type" in request.query:
            return 200, listing(self.objects, request.query["prefix"]), HEADERS
        if request.method == "GET":
            return super().answer(request)
        # Leases, taken and given back.
        return 200, b"" if request.method == "PUT" else b"<DeleteResult></DeleteResult>", HEADERS


def listing(objects, prefix):
    keys = sorted(key for key in objects if key.startswith(prefix))
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
