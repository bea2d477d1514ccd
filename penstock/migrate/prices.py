"""List prices of moving bytes out of a cloud, in US dollars: a rough guide, to be replaced by one's own contract's.

From the providers' public price pages, standard storage in a US region, first tier, without free amounts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """egress: per GB (1e9 bytes) that leaves the provider; read, write: per 1,000 requests."""

    egress: float = 0.0
    read: float = 0.0
    write: float = 0.0


BY_SCHEME = {
    **dict.fromkeys(("s3", "s3a"), Prices(egress=0.09, read=0.0004, write=0.005)),
    **dict.fromkeys(("gs", "gcs"), Prices(egress=0.12, read=0.0004, write=0.005)),
    **dict.fromkeys(("az", "abfs", "abfss"), Prices(egress=0.087, read=0.0005, write=0.0065)),
}


def prices_of(url: str) -> Prices:
    """Of the provider that a URL's scheme names; nothing for disks and others."""
    return BY_SCHEME.get(url.partition("://")[0], Prices())
