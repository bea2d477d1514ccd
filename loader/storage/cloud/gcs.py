"""Open gs://bucket/prefix (and gcs://) through obstore.

Options: see `spec.py`; also obstore's own names (with or without `google_`) and gcsfs's: `endpoint_url`, `anon`
(read-only), `project` (unused) and `token`: "anon", "google_default", a credentials file's path or content.
`credential_provider` is a function that returns obstore's GCSCredential.

Credentials, first match: options; GOOGLE_APPLICATION_CREDENTIALS, or gcloud's application default file; obstore's own
variables and the machine's metadata server.

With google-auth (penstock-data[gcs]) every kind of credentials file works; without it, only service account keys and
user credentials.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InvalidStore
from ..spec import StoreSpec, bucket_and_prefix, store_runtime, translate_options
from ..store import Store
from .connection import connector
from .credentials import file_provider
from .listing import google_pages
from .store import RemoteStore

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
_EXPLICIT = ("bearer_token", "service_account", "service_account_key", "skip_signature")
_OWN_VARIABLES = (
    *("google_bearer_token", "google_service_account", "google_service_account_path"),
    "google_service_account_key",
)


def open_gcs(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Open a Google Cloud Storage bucket. Raises: InvalidStore; ForkedStore."""
    bucket, prefix = bucket_and_prefix(url)
    shown = f"gs://{bucket}/{prefix}".rstrip("/")
    runtime = store_runtime(shown, options)
    config, provider = gcs_config(shown, options)
    connect = connector("GCSStore", bucket, config, provider, runtime)
    pages_of = google_pages(bucket, config, provider, runtime)
    return RemoteStore(connect, prefix, spec, shown, runtime, pages_of=pages_of, delete_keys=1)


def gcs_config(
    url: str, options: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], Any]:
    """Return (obstore's config, credential provider or None). environ: None reads this process's.

    Raises: InvalidStore; MissingDependency.
    """
    environ = os.environ if environ is None else environ
    config = translate_options(url, options, NAMES, _OURS)
    _add_token(url, config, options.get("token"))
    if not config.get("skip_signature", True):
        del config["skip_signature"]
    provided = options.get("credential_provider")
    if provided is not None and not callable(provided):
        raise InvalidStore(f"{url}: credential_provider is a {type(provided).__name__}; give a function")
    if provided is not None or any(config.get(name) for name in _EXPLICIT):
        return config, provided
    # An empty variable counts as none, as for google-auth.
    file = config.get("application_credentials") or environ.get("GOOGLE_APPLICATION_CREDENTIALS") or None
    if file is None and not any(environ.get(name.upper()) for name in _OWN_VARIABLES):
        home = Path(environ.get("CLOUDSDK_CONFIG", "~/.config/gcloud")).expanduser()
        file = usual if (usual := home / "application_default_credentials.json").exists() else None
    if file is None:
        return config, None
    provider = file_provider(url, str(file))
    if provider is not None:
        config.pop("application_credentials", None)
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
            "a credentials file and its content as a dict; an OAuth token goes under bearer_token",
            what="token",
            where=url,
        )
