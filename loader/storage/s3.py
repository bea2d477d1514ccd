"""s3://bucket/prefix (and s3a://) through obstore.

Options: those of `options.py`, obstore's own names (with or without `aws_`) and s3fs's: key, secret, token,
anon, profile, endpoint_url, requester_pays, client_kwargs={"endpoint_url", "region_name", "aws_..."}.
`credential_provider` is a function that returns obstore's S3Credential; it pickles by its import path.

Credentials, first found: options, one of key and secret, `profile`, `credential_provider`, `anon`; the
environment's AWS_ACCESS_KEY_ID; AWS_PROFILE; the default profile, when there is a ~/.aws/credentials; obstore's
chain (web identity, container and instance roles). Explicit keys are not mixed with the environment's token.

This module and obstore itself are where AWS_* variables are read, and nowhere else.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidStore, MissingDependency
from .connection import connector
from .objectstore import RemoteStore
from .options import bucket_and_prefix, runtime_of, translate_options
from .spec import StoreSpec
from .store import Store

_log = logging.getLogger(__name__)

_OBSTORE = (
    *("access_key_id", "secret_access_key", "session_token", "region", "endpoint", "skip_signature"),
    *("virtual_hosted_style_request", "request_payer", "checksum_algorithm", "unsigned_payload"),
    *("server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "sse_customer_key_base64"),
    *("role_arn", "role_session_name", "web_identity_token_file", "sts_endpoint", "metadata_endpoint"),
    *("imdsv1_fallback", "s3_express", "disable_tagging", "disable_bulk_delete"),
    *("container_credentials_relative_uri", "container_credentials_full_uri"),
)
NAMES = {
    **{name: name for name in _OBSTORE},
    **{f"aws_{name}": name for name in _OBSTORE},
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "aws_token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "aws_endpoint_url": "endpoint",
    "region_name": "region",
    "requester_pays": "request_payer",
}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_OURS = ("profile", "client_kwargs", "credential_provider")


def open_s3(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Raises: InvalidStore; MissingDependency for a profile without boto3; ForkedStore."""
    bucket, prefix = bucket_and_prefix(url)
    shown = f"s3://{bucket}/{prefix}".rstrip("/")
    runtime = runtime_of(shown, options)
    config, provider = s3_config(shown, options)
    connect = connector("S3Store", bucket, config, provider, runtime)
    delete_keys = 1 if config.get("disable_bulk_delete") else 1000
    return RemoteStore(connect, prefix, spec, shown, runtime, delete_keys=delete_keys)


def s3_config(
    url: str, options: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], Any]:
    """(obstore's config, credential provider or None) for options in any of the accepted spellings. environ: None is
    this process's.

    Raises: InvalidStore; MissingDependency.
    """
    environ = os.environ if environ is None else environ
    client_kwargs = options.get("client_kwargs") or {}
    if not isinstance(client_kwargs, Mapping):
        raise InvalidStore(f"{url}: client_kwargs is a {type(client_kwargs).__name__}; give a dict")
    flat = {name: value for name, value in options.items() if name != "client_kwargs"}
    for name, value in client_kwargs.items():
        if name in flat and flat[name] != value:
            raise InvalidStore(f"{url}: {name!r} is given twice, in client_kwargs too; give it once")
        flat[name] = value
    config = translate_options(url, flat, NAMES, _OURS)
    endpoint = config.get("endpoint") or next(
        (environ[name] for name in _ENDPOINTS if environ.get(name)), None
    )
    if endpoint:
        config["endpoint"] = str(endpoint)
    if "skip_signature" in config and not config["skip_signature"]:
        del config["skip_signature"]
    provider = _provider(url, options, config, environ)
    region = config.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    config["region"] = region or getattr(provider, "config", {}).get("region") or "us-east-1"
    return config, provider


def _provider(
    url: str, options: Mapping[str, object], config: dict[str, Any], environ: Mapping[str, str]
) -> Any:
    given = options.get("credential_provider")
    if given is not None and not callable(given):
        raise InvalidStore(f"{url}: credential_provider is a {type(given).__name__}; give a function")
    profile = options.get("profile")
    anonymous = bool(config.get("skip_signature"))
    explicit = _explicit(url, config)
    if sum((given is not None, bool(profile), anonymous or explicit is not None)) > 1:
        raise InvalidStore(
            f"{url}: a profile, a credential_provider and explicit credentials (or anon) contradict; give one"
        )
    if given is not None or explicit is not None or anonymous:
        return None if anonymous else given or explicit
    if profile or "AWS_ACCESS_KEY_ID" in environ:
        return _boto_provider(url, str(profile)) if profile else None
    if "AWS_PROFILE" in environ:
        return _boto_provider(url, environ["AWS_PROFILE"])
    credentials_file = environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    if os.path.exists(os.path.expanduser(credentials_file)):
        try:
            return _boto_provider(url, "default")
        except (InvalidStore, MissingDependency) as error:
            _log.debug("not using the default AWS profile: %s", error)
    return None


def _explicit(url: str, config: dict[str, Any]) -> Callable[[], dict[str, Any]] | None:
    """Keys out of `config`, as a provider: in its config obstore would mix them with AWS_SESSION_TOKEN."""
    made = {name: config.pop(name, None) for name in ("access_key_id", "secret_access_key", "session_token")}
    if made == dict.fromkeys(made):
        return None
    if not made["access_key_id"] or not made["secret_access_key"]:
        raise InvalidStore(f"{url}: give both key and secret, or neither (then the environment is asked)")
    token = made.pop("session_token")
    return lambda: {**made, "token": token, "expires_at": None}


def _boto_provider(url: str, profile: str) -> Any:
    try:
        import boto3.session
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingDependency(
            f"{url}: the AWS profile {profile!r} needs boto3: pip install 'penstock[s3]'"
        ) from error
    try:
        return Boto3CredentialProvider(boto3.session.Session(profile_name=profile))
    except (BotoCoreError, ValueError) as error:
        raise InvalidStore(
            f"{url}: AWS profile {profile!r} gives no credentials: {error}; see ~/.aws/config"
        ) from None
