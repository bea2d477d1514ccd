"""Check each request's Host, token, cookie and method, and set security headers on every response."""

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
"""Bytes of an address and all headers: anyone who reaches the port can send them without a token."""
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
        """token: required in the first address. hosts: accepted Host headers, in lower case. name: the cookie's.

        prefix: path in front of every address, which a proxy may strip. writes: accept POST.
        """
        self.app = app
        self._token = token
        self._hosts = frozenset(hosts)
        self._cookie = name
        self._prefix = prefix
        self._writes = writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it on."""
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

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, with_headers)
            return
        path = scope["path"]
        if self._prefix and (path == self._prefix or path.startswith(f"{self._prefix}/")):
            scope = {**scope, "path": path[len(self._prefix) :] or "/"}
        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        if _head_bytes(scope) > MOST_HEAD_BYTES:
            return PlainTextResponse(
                f"the address and the headers of a request may have up to {MOST_HEAD_BYTES:,} bytes",
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
        token = next((value for key, value in query if key == "token"), None)
        if token is not None and scope["method"] in _READS:
            return self._first_address(scope, query, token)
        if not self._has_token(headers):
            return _without_token()
        if scope["method"] in _READS:
            return None
        if scope["method"] != "POST" or not self._writes:
            return PlainTextResponse("this server only reads; start it with --allow-writes", status_code=405)
        return self._bad_post(headers, host)

    def _first_address(self, scope: Scope, query: list[tuple[str, str]], token: str) -> Response:
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return _without_token()
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # A relative address keeps any prefix that a proxy added. "./" keeps "a:b" from being read as a scheme.
        last = quote(scope["path"].rpartition("/")[2])
        address = f"./{last}"
        if rest:
            address += f"?{rest}"
        answer = RedirectResponse(address, status_code=303)
        answer.set_cookie(
            self._cookie, self._token, httponly=True, samesite="strict", path=f"{self._prefix}/"
        )
        return answer

    def _has_token(self, headers: Headers) -> bool:
        # http.cookies and starlette unquote cookies in quadratic time: 60 KB of backslashes take 35 s.
        # The token is URL-safe and never quoted, so no unquoting is needed.
        pairs = (one.strip().partition("=") for line in headers.getlist("cookie") for one in line.split(";"))
        return any(
            name == self._cookie and hmac.compare_digest(value.encode(), self._token.encode())
            for name, _, value in pairs
        )

    def _bad_post(self, headers: Headers, host: str) -> Response | None:
        origin = headers.get("origin", "").partition("://")[2].lower()
        length = headers.get("content-length", "")
        wrong = {
            "Content-Type is not application/json": headers.get("content-type") != "application/json",
            "Origin is another server": origin != host,
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
        if reasons:
            return PlainTextResponse(f"refused: {'; '.join(reasons)}", status_code=403)
        return None


def _head_bytes(scope: Scope) -> int:
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return headers + len(scope.get("raw_path") or b"") + len(scope["query_string"])


def new_token() -> str:
    return secrets.token_urlsafe(32)


def csrf(token: str) -> str:
    """Return the value that a POST must carry, which does not reveal the token."""
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def _without_token() -> Response:
    # Links from other sites do not send the SameSite=Strict cookie. The link on this page does.
    return HTMLResponse(
        "<!doctype html><title>penstock</title><p>This server shows its data only to the holder of its token: open the "
        'address that <code>penstock view</code> printed.</p><p>If you did that before, <a href="">open this page '
        "again</a>.</p>",
        status_code=403,
    )
