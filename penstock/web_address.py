"""Parse addresses of web pages and hooks, which operators set."""

from urllib.parse import SplitResult, urlsplit


def web_address(url: str) -> SplitResult | None:
    """Return the parts of http(s)://host, with or without a port and a path; None for another text."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError unless it is a number up to 65535
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts
