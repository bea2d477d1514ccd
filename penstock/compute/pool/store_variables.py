"""Environment variables that a worker needs for reading a store: those of its provider, and no other's."""

import re
from collections.abc import Iterator, Mapping

from loader.storage import RangeReader

_OF_PROVIDER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("s3", "s3a"), ("AWS_*",)),
    **dict.fromkeys(("gs", "gcs"), ("GOOGLE_*", "CLOUDSDK_*", "GCE_METADATA_*", "STORAGE_EMULATOR_HOST")),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), ("AZURE_*", "MSI_*", "IDENTITY_*")),
    "hf": ("HF_*",),
}
_OF_NETWORKS = (
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "FSSPEC_*"),
)
_ON_THIS_MACHINE = ("file", "local", "memory")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def store_variables(*places: RangeReader | str) -> frozenset[str]:
    """Return names of variables, or 'AWS_*' for all that begin so.

    places: stores, or URLs that are read beside them. A file system that fsspec knows and this list does not needs
    those that `ComputeResource.variables` names.
    """
    return frozenset(name for place in places for name in _of(place))


def _of(place: RangeReader | str) -> Iterator[str]:
    if not isinstance(place, str):
        yield from getattr(place, "variables", ())  # those that a source's options name
        for member in getattr(place, "stores", ()):  # of a root with mirrors
            yield from _of(member)
    url = place if isinstance(place, str) else place.url
    for scheme in _SCHEME.findall(url):
        if scheme.lower() not in _ON_THIS_MACHINE:
            yield from _OF_NETWORKS
            yield from _OF_PROVIDER.get(scheme.lower(), ())
