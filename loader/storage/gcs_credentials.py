"""Google's credential files, of every kind that google-auth knows, as what obstore asks for tokens.

Kinds: service_account, authorized_user (a person's), impersonated_service_account, external_account (workload identity
federation: a token of another cloud, a file, a URL or a program is exchanged). Tokens are renewed before they expire.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidStore, MissingDependency

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_NATIVE = ("service_account", "authorized_user")
_ADVICE = "give one that gcloud or the console wrote, or unset GOOGLE_APPLICATION_CREDENTIALS"


def file_provider(url: str, path: str) -> Any:
    """What gives and renews tokens as the file at `path` says; None where obstore reads that file itself.

    Raises: InvalidStore for a file that is none of credentials; MissingDependency for a kind that needs google-auth.
    """
    try:
        info = json.loads(Path(path).read_bytes())
        kind = info["type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = type(error).__name__
        raise InvalidStore(f"{url}: {path!r} is no file of Google credentials ({why}); {_ADVICE}") from None
    try:
        from google.auth.exceptions import GoogleAuthError
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError as error:
        if kind in _NATIVE:
            return None
        raise MissingDependency(
            f"{url}: credentials of the kind {kind!r} need google-auth: pip install 'penstock[gcs]'"
        ) from error
    try:
        return GoogleCredentialProvider(_loaded(kind, info))
    except (GoogleAuthError, ValueError, KeyError, TypeError) as error:
        why = type(error).__name__  # its text may hold the key
        raise InvalidStore(
            f"{url}: {path!r} ({kind}) gives no Google credentials ({why}); {_ADVICE}"
        ) from None


def _loaded(kind: str, info: Mapping[str, Any]) -> Any:
    if kind == "service_account":
        from google.oauth2 import service_account

        return service_account.Credentials.from_service_account_info(info, scopes=_SCOPES)
    if kind == "authorized_user":
        from google.oauth2 import credentials

        return credentials.Credentials.from_authorized_user_info(info, scopes=_SCOPES)
    if kind == "impersonated_service_account":
        from google.auth import impersonated_credentials

        return impersonated_credentials.Credentials.from_impersonated_service_account_info(
            info, scopes=_SCOPES
        )
    if kind != "external_account":
        raise ValueError(kind)
    from google.auth import aws, identity_pool, pluggable

    if info.get("subject_token_type") == "urn:ietf:params:aws:token-type:aws4_request":
        return aws.Credentials.from_info(info, scopes=_SCOPES)
    if "executable" in info.get("credential_source", {}):
        return pluggable.Credentials.from_info(info, scopes=_SCOPES)
    return identity_pool.Credentials.from_info(info, scopes=_SCOPES)
