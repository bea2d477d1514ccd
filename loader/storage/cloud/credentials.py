"""Find credentials for S3 and Google stores as the providers' own tools do.

S3, first match: options (keys, `profile`, `credential_provider`, `anon`); AWS_ACCESS_KEY_ID; AWS_PROFILE; a web
identity (AWS_WEB_IDENTITY_TOKEN_FILE); the default profile in ~/.aws; obstore's chain for containers and instances.
Profiles (roles, SSO, processes) use boto3, which renews credentials.

Google: any credential file that google-auth reads (service_account, authorized_user, impersonated_service_account,
external_account), as a provider that renews tokens before they expire.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...errors import InvalidStore, MissingDependency

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_NATIVE = ("service_account", "authorized_user")
_ADVICE = "give one that gcloud or the console wrote, or unset GOOGLE_APPLICATION_CREDENTIALS"


def file_provider(url: str, path: str) -> Any:
    """Return a token provider for the file at `path`; None if obstore reads the file itself.

    Raises: InvalidStore if the file is not a credential file; MissingDependency if it needs google-auth.
    """
    try:
        info = json.loads(Path(path).read_bytes())
        kind = info["type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = type(error).__name__
        raise InvalidStore(
            f"{url}: {path!r} is not a file of Google credentials ({why}); {_ADVICE}",
            what="credentials file",
            where=url,
            given=path,
        ) from None
    try:
        from google.auth.exceptions import GoogleAuthError
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError as error:
        if kind in _NATIVE:
            return None
        raise MissingDependency(
            f"{url}: credentials of the kind {kind!r} need google-auth: pip install 'penstock-data[gcs]'"
        ) from error
    try:
        return GoogleCredentialProvider(_load_credentials(kind, info))
    except (GoogleAuthError, ValueError, KeyError, TypeError) as error:
        why = type(error).__name__  # its text may contain the key
        raise InvalidStore(
            f"{url}: {path!r} ({kind}) gives no Google credentials ({why}); {_ADVICE}",
            what="credentials file",
            where=url,
            given=path,
            accepted=f"credentials, not {kind}",
        ) from None


def google_token(config: Mapping[str, Any]) -> str:
    """Return an OAuth token from google-auth, for the service account key in `config` or for this machine.

    Raises: ImportError if google-auth is missing; ValueError, KeyError, TypeError, OSError, GoogleAuthError if there
    are not valid credentials.
    """
    import google.auth
    from google.auth.transport.requests import Request

    key = config.get("service_account_key")
    path = config.get("service_account") or config.get("application_credentials")
    if key or path:
        text = key or Path(str(path)).read_bytes()
        info = json.loads(text)
        credentials = _load_credentials(info.get("type", "service_account"), info)
    else:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    credentials.refresh(Request())
    return str(credentials.token)


def _load_credentials(kind: str, info: Mapping[str, Any]) -> Any:
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


_log = logging.getLogger(__name__)

# When asked, boto3 renews credentials that expire within 10 minutes, so it is asked at least that often.
_ASKED_AGAIN = timedelta(minutes=10)
_SAYS_CREDENTIALS = (
    *("aws_access_key_id", "credential_process", "credential_source", "role_arn", "web_identity_token_file"),
    *("sso_session", "sso_start_url", "login_session"),
)


def credential_provider(
    url: str, options: Mapping[str, object], config: dict[str, Any], environ: Mapping[str, str]
) -> Any:
    """Return a credential provider for obstore; None if obstore finds credentials itself or needs none.

    Moves explicit keys from `config` into a provider. An empty variable counts as none, as for boto3.

    Raises: InvalidStore; MissingDependency if a profile needs boto3.
    """
    # In the order of the module's docstring.
    provider = options.get("credential_provider")
    if provider is not None and not callable(provider):
        raise InvalidStore(
            f"{url}: credential_provider is a {type(provider).__name__}; give a function",
            what="credential_provider",
            where=url,
            given=type(provider).__name__,
            accepted="a function",
        )
    profile = options.get("profile")
    anonymous = bool(config.get("skip_signature"))
    explicit = _pop_explicit_keys(url, config)
    is_explicit = anonymous or explicit is not None
    n_given = sum((provider is not None, bool(profile), is_explicit))
    if n_given > 1:
        raise InvalidStore(
            f"{url}: a profile, a credential_provider and explicit credentials (or anon) contradict; give one",
            what="credentials",
            where=url,
            accepted="one of profile, credential_provider and explicit credentials",
        )
    if anonymous:
        return None
    if provider is not None:
        return provider
    if explicit is not None:
        return explicit
    if profile:
        return _boto_provider(url, str(profile))
    if environ.get("AWS_ACCESS_KEY_ID"):
        return None
    # Also an empty name, which boto3 refuses, too.
    if "AWS_PROFILE" in environ:
        return _boto_provider(url, environ["AWS_PROFILE"])
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    settings = profile_settings(environ)
    if any(settings.get(name) for name in _SAYS_CREDENTIALS):
        try:
            return _boto_provider(url, "default")
        except (InvalidStore, MissingDependency) as error:
            # The store then looks for a machine's role, whose failure would hide this one.
            _log.warning("not using the default AWS profile: %s", error)
    return None


def profile_settings(environ: Mapping[str, str], profile: str | None = None) -> Mapping[str, str]:
    """Return a profile's settings in ~/.aws, or {}. profile: None for AWS_PROFILE or the default."""
    name = profile or environ.get("AWS_PROFILE") or "default"
    settings: dict[str, str] = {}
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        path = os.path.expanduser(environ.get(variable, usual))
        if not os.path.exists(path):
            continue  # most training runs have none, and save the import's 5 ms
        from configparser import Error, RawConfigParser

        parser = RawConfigParser(strict=False)
        try:
            parser.read(path, encoding="utf-8")
            settings.update(parser.items(section) if parser.has_section(section) else ())
        except (Error, UnicodeDecodeError) as error:
            _log.debug("not reading %s: %s", variable, type(error).__name__)
    return settings


def _pop_explicit_keys(url: str, config: dict[str, Any]) -> Callable[[], dict[str, Any]] | None:
    """Remove keys from `config`; return their provider, or None without keys.

    As configuration, obstore would mix them with AWS_SESSION_TOKEN.
    """
    keys = {name: config.pop(name, None) for name in ("access_key_id", "secret_access_key", "session_token")}
    if keys == dict.fromkeys(keys):
        return None
    if not keys["access_key_id"] or not keys["secret_access_key"]:
        raise InvalidStore(
            f"{url}: give both key and secret, or neither (then the environment is asked)",
            what="key and secret",
            where=url,
            given="one",
            accepted="both or neither",
        )
    token = keys.pop("session_token")
    return lambda: {**keys, "token": token, "expires_at": None}


def _boto_provider(url: str, profile: str) -> Any:
    try:
        import boto3.session
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingDependency(
            f"{url}: the AWS profile {profile!r} needs boto3: pip install 'penstock-data[s3]'"
        ) from error
    try:
        return Boto3CredentialProvider(boto3.session.Session(profile_name=profile), ttl=_ASKED_AGAIN)
    except (BotoCoreError, ValueError) as error:
        raise InvalidStore(
            f"{url}: AWS profile {profile!r} gives no credentials: {error}; see ~/.aws/config",
            what="profile",
            where=url,
            given=profile,
        ) from None
