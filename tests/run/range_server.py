"""A real HTTP server of objects, which may hold its answers back."""

from collections.abc import Callable, Mapping

from tests.servers.http import Answer, HttpServer, Request

HEADERS = {"etag": '"e"', "last-modified": "Wed, 21 Oct 2015 07:28:00 GMT"}


class RangeServer(HttpServer):
    """`objects`: key -> bytes, below /bucket/. It takes no writes.

    before(path, nbytes) is called before each answer to a range, in its thread.
    """

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = objects
        self.before: Callable[[str, int], object] = lambda path, nbytes: None
        super().__init__(self.answer)
        self.options = {"key": "k", "secret": "s", "endpoint_url": self.endpoint}

    def answer(self, request: Request) -> Answer:
        if request.method != "GET":
            return 403, b"<Error><Code>AccessDenied</Code></Error>", HEADERS
        body = self.objects.get(request.path.removeprefix("/bucket/"))
        if body is None:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", HEADERS
        if "range" not in request.headers:
            return 200, body, HEADERS
        low, high = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
        piece = body[low : high + 1]
        self.before(request.path, len(piece))
        return 206, piece, {**HEADERS, "content-range": f"bytes {low}-{low + len(piece) - 1}/{len(body)}"}
