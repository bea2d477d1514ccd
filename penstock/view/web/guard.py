"""Admission of requests: Host, token and cookie, methods, and the headers of every answer.

The server shows private data to whoever reaches it, so it admits the holder of its token alone, under its own names.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "media-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
MOST_BODY_BYTES = 1 << 20
MOST_HEAD_BYTES = 32 * 1024
"""Bytes of an address and of all headers. Anybody who reaches the port can send them: no token is compared yet."""
_READS = ("GET", "HEAD")


class Guard:
    """ASGI middleware in front of every route, static files included."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: Collection[str],
        name: str,
        prefix: str = "",
        writes: bool = False,
    ) -> None:
        """Set the rules.

        Args:
            app: Application behind the guard.
            token: Secret that the first address carries.
            hosts: Accepted values of the Host header, in lower case.
            name: Name of the cookie.
            prefix: Path before every address, such as "/proxy/8497"; a proxy may take it away or not.
            writes: True lets POST through, with its own checks.
        """
        self.app, self._token, self._hosts = app, token, frozenset(hosts)
        self._cookie, self._prefix, self._writes = name, prefix, writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand the request on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                own = {"cache-control": "no-store", **HEADERS}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in own.items() if k.encode() not in names),
                ]
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, with_headers)
            return
        path = scope["path"]
        if self._prefix and (path == self._prefix or path.startswith(f"{self._prefix}/")):
            scope = {**scope, "path": path[len(self._prefix) :] or "/"}
        await self.app(scope, receive, with_headers)

    def _refused(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not admitted; None for one that is."""
        if _head_bytes(scope) > MOST_HEAD_BYTES:
            return PlainTextResponse(
                f"the address and the headers of a request have {MOST_HEAD_BYTES:,} bytes at most",
                status_code=431,
            )
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            accepted = ", ".join(sorted(self._hosts))
            return PlainTextResponse(
                f"Host {host[:200]!r} is not this server's; accepted: {accepted}. Behind a proxy: --allow-host NAME",
                status_code=421,
            )
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for key, value in query if key == "token"), None)
        if given is not None and scope["method"] in _READS:
            return self._first_address(scope, query, given)
        if not self._knows(headers):
            return _without_token()
        if scope["method"] in _READS:
            return None
        if scope["method"] != "POST" or not self._writes:
            return PlainTextResponse("this server only reads; start it with --allow-writes", status_code=405)
        return self._bad_post(headers, host)

    def _first_address(self, scope: Scope, query: list[tuple[str, str]], given: str) -> Response:
        """Turn the token of the first address into a cookie, and take it out of the address."""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return _without_token()
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # A relative address: whatever a proxy put before the path stays. "./" keeps "a:b" from being a scheme.
        last = quote(scope["path"].rpartition("/")[2])
        answer = RedirectResponse(f"./{last}" + (f"?{rest}" if rest else ""), status_code=303)
        answer.set_cookie(
            self._cookie, self._token, httponly=True, samesite="strict", path=f"{self._prefix}/"
        )
        return answer

    def _knows(self, headers: Headers) -> bool:
        """Return whether a Cookie header has the token.

        http.cookies and starlette unquote every value of a cookie in quadratic time: 60 KB of backslashes take 35 s.
        The token is of URL-safe letters, which nobody quotes.
        """
        pairs = (one.strip().partition("=") for line in headers.getlist("cookie") for one in line.split(";"))
        return any(
            name == self._cookie and hmac.compare_digest(value.encode(), self._token.encode())
            for name, _, value in pairs
        )

    def _bad_post(self, headers: Headers, host: str) -> Response | None:
        """Return the answer to a POST of another page; None for one of ours."""
        origin = headers.get("origin", "").partition("://")[2].lower()
        length = headers.get("content-length", "")
        wrong = {
            "Content-Type is not application/json": headers.get("content-type") != "application/json",
            "Origin is another": origin != host,
            "Sec-Fetch-Site is not same-origin": headers.get("sec-fetch-site", "same-origin")
            != "same-origin",
            "X-CSRF is wrong": not hmac.compare_digest(
                headers.get("x-csrf", "").encode(), csrf(self._token).encode()
            ),
            "the body comes in chunks": "transfer-encoding" in headers,
            "the body is too large": not length.isdecimal()
            or len(length) > 18
            or int(length) > MOST_BODY_BYTES,
        }
        reasons = [reason for reason, holds in wrong.items() if holds]
        return PlainTextResponse(f"refused: {'; '.join(reasons)}", status_code=403) if reasons else None


def _head_bytes(scope: Scope) -> int:
    """Return the bytes of a request's address and headers."""
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return headers + len(scope.get("raw_path") or b"") + len(scope["query_string"])


def new_token() -> str:
    """Return a token of 256 bits."""
    return secrets.token_urlsafe(32)


def csrf(token: str) -> str:
    """Return the value that pages of this server send with a POST; it does not tell the token."""
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def _without_token() -> Response:
    # A link from another site comes without the cookie, because it is SameSite=Strict; the link here comes with it.
    return HTMLResponse(
        "<!doctype html><title>penstock</title><p>This server shows its data to the holder of its token: open the "
        'address that <code>penstock view</code> printed.</p><p><a href="">Open again</a> where that was done before.'
        "</p>",
        status_code=403,
    )
