"""Check the settings of an S3 bucket through boto3, before a root suffers from them."""

from collections.abc import Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any
from xml.etree.ElementTree import ParseError

from loader.errors import MissingDependency
from loader.storage.cloud.s3 import s3_config
from loader.storage.options import bucket_and_prefix
from loader.storage.spec import redact, secret_values

from .finding import Finding, note
from .s3_questions import QUESTIONS, Bucket

DENIED = {"AccessDenied", "403", "AllAccessDisabled", "AccessDeniedException", "UnauthorizedOperation"}
STRANGERS = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "RequestTimeTooSkewed"),
    "NoSuchBucket",
}
UNKNOWN = {"NotImplemented", "MethodNotAllowed", "501", "405"}


def s3_endpoint(url: str, options: Mapping[str, Any]) -> str:
    """Return the server's URL. Raises: InvalidStore; MissingDependency."""
    config, _ = s3_config(url, options)
    return str(config.get("endpoint") or f"https://s3.{config['region']}.amazonaws.com")


def s3_bucket(url: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about a bucket's settings and objects.

    Seven requests, and one per 1,000 objects up to 10,000. Raises: InvalidStore; MissingDependency.
    """
    try:
        import boto3
        from botocore.config import Config  # type: ignore[import-untyped]
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
        from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
    except ImportError:
        raise MissingDependency(
            "boto3 is not installed, so the bucket's own settings were not asked for: pip install 'penstock-data[s3]'"
        ) from None
    bucket, prefix = bucket_and_prefix(url)
    config, provider = s3_config(url, options)
    if iscoroutinefunction(provider):
        yield note("settings", "not asked: the credential_provider is asynchronous")
        return
    secrets = secret_values(options)
    try:
        keys = _keys(provider)
    except Exception as error:  # noqa: BLE001 - a function of the user's, or a profile's: whatever it raises
        yield _not_asked("settings", error, secrets)
        return
    try:
        client = boto3.client(
            "s3",
            endpoint_url=config.get("endpoint"),
            region_name=config["region"],
            config=Config(
                signature_version=_unsigned() if config.get("skip_signature") else None,
                retries={"total_max_attempts": 2},
                connect_timeout=5,
                read_timeout=10,
            ),
            **keys,
        )
    except (BotoCoreError, ValueError) as error:
        yield _not_asked("settings", error, secrets)
        return
    asked = Bucket(client, bucket, f"{prefix}/" if prefix else "", config)
    for check, question in QUESTIONS.items():
        try:
            yield from question(asked)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            yield _refused(check, code)
            if code in STRANGERS:
                break  # it answers every question so
        except BotoCoreError as error:
            yield _not_asked(check, error, secrets)
        except (ResponseParserError, ParseError, LookupError, TypeError, ValueError) as error:
            brief = " ".join(str(error).split())[:200]
            yield note(check, f"this server's answer is not as S3's ({type(error).__name__}: {brief})")
    client.close()


def _not_asked(check: str, error: Exception, secrets: Sequence[str]) -> Finding:
    brief = redact(" ".join(str(error).split()), secrets)[:300]
    return note(check, f"not asked: {type(error).__name__}: {brief}")


def _refused(check: str, code: str) -> Finding:
    if code in DENIED:
        return note(
            check, "not permitted to ask", "ask the bucket's owner, or run this with their credentials"
        )
    if code in UNKNOWN:
        return note(check, f"this server does not answer that question ({code})")
    return note(check, f"the server answered {code}")


def _keys(provider: Any) -> dict[str, Any]:
    """Return a provider's keys by boto3's names; {} lets boto3 find them."""
    if provider is None:
        return {}
    credentials = provider()
    return {
        "aws_access_key_id": credentials["access_key_id"],
        "aws_secret_access_key": credentials["secret_access_key"],
        "aws_session_token": credentials.get("token"),
    }


def _unsigned() -> Any:
    from botocore import UNSIGNED  # type: ignore[import-untyped]

    return UNSIGNED
