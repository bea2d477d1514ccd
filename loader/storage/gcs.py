"""gs://bucket/prefix (and gcs://) through obstore.

Options: those of `options.py`, obstore's own names (with or without `google_`) and gcsfs's: `endpoint_url`,
`anon`, `project` (not needed to reach objects, and not used) and `token`: "anon", "google_default", the path
of a credentials file, or its content as a dict. `credential_provider` is a function that returns obstore's
GCSCredential. Without any of them obstore finds Google's application default credentials.
"""

import json
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidStore
from .connection import connector
from .objectstore import RemoteStore
from .options import bucket_and_prefix, runtime_of, translate_options
from .spec import StoreSpec
from .store import Store

_OBSTORE = (
    *("service_account", "service_account_key", "application_credentials", "bearer_token"),
    *("base_url", "skip_signature"),
)
NAMES = {
    **{name: name for name in _OBSTORE},
    **{f"google_{name}": name for name in _OBSTORE},
    "anon": "skip_signature",
    "endpoint_url": "base_url",
}
_OURS = ("token", "project", "credential_provider")


def open_gcs(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Raises: InvalidStore; ForkedStore."""
    bucket, prefix = bucket_and_prefix(url)
    shown = f"gs://{bucket}/{prefix}".rstrip("/")
    runtime = runtime_of(shown, options)
    config, provider = gcs_config(shown, options)
    return RemoteStore(connector("GCSStore", bucket, config, provider, runtime), prefix, spec, shown, runtime)


def gcs_config(url: str, options: Mapping[str, object]) -> tuple[dict[str, Any], Any]:
    """(obstore's config, credential provider or None). Raises: InvalidStore."""
    config = translate_options(url, options, NAMES, _OURS)
    _add_token(url, config, options.get("token"))
    if not config.get("skip_signature", True):
        del config["skip_signature"]
    provider = options.get("credential_provider")
    if provider is not None and not callable(provider):
        raise InvalidStore(f"{url}: credential_provider is a {type(provider).__name__}; give a function")
    return config, provider


def _add_token(url: str, config: dict[str, Any], token: object) -> None:
    if token is None or token == "google_default":
        return
    if token == "anon":
        config["skip_signature"] = True
    elif isinstance(token, Mapping):
        config["service_account_key"] = json.dumps(dict(token))
    elif isinstance(token, str) and ("/" in token or token.endswith(".json")):
        config["application_credentials"] = token
    else:
        raise InvalidStore(
            f"{url}: this kind of token is not supported; accepted are 'anon', 'google_default', the path of "
            "a credentials file and its content as a dict; an OAuth token goes under bearer_token"
        )
