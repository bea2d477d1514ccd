"""Tokenize documents, captions, transcripts and chats."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from assets import invalid_option
from loader.errors import InvalidSpec

from ...media.unit import rejected
from ..decoding import STAGE, decoded, kind_field, kind_inputs
from ..featurizer import Column, Features, Featurizer, version_of
from . import tekken

MAX_TEXT_BYTES = 2**30
MAX_UINT16_IDS = 2**16
_FIELD = re.compile(r"(?:([a-z][a-z0-9_]*)\.)?tokens\.npy")
_SHA256 = re.compile("[0-9a-f]{64}")
_LATER_DEFAULTS = {"sha256": None, "field": "tokens.npy", "append": None, "chat": None}
"""Parameters that came later, with their defaults: at these the featurizer's version is what it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens(Featurizer):
    """Tokens of documents, captions, transcripts, or chats.

    A missing or empty document is rejected; a caption then gives no tokens. Text that the tokenizer cannot split
    (hundreds of thousands of blanks in a row) is rejected. Special tokens in a text stay text.

    Field `tokens.npy`: int32 [n], or uint16 if a tokenizer file has at most 65,536 ids. Columns: n_tokens, None for a
    missing caption. With `chat`: the field `mask.npy`, bool [n], True for tokens that the assistant writes, and the
    column n_trained. For another `field` than `tokens.npy`, its first word goes before these names, and after the
    featurizer's: `q.tokens.npy` of `tokens_q` has `q.mask.npy`, `q_n_tokens` and `q_n_trained`.
    """

    text: str | None = "txt"
    """Txt field with a text sample's document; None skips texts."""
    image: str | None = None
    """Txt field with a photo's caption; None skips photos."""
    video: str | None = None
    """Txt field with a clip's caption; None skips clips."""
    audio: str | None = None
    """Txt field with an audio sample's transcript; None skips audio."""
    max_bytes: int = 8 << 20
    """Length of the longest accepted text in bytes."""
    tokenizer: str | None = None
    """Path of a `tokenizer.json` or a sentencepiece `.model`; None for Tekken. Each machine needs the file."""
    sha256: str | None = None
    """SHA-256 of the tokenizer's file, in hexadecimal digits."""
    field: str = "tokens.npy"
    """Field with the token ids: `tokens.npy`, or `<word>.tokens.npy`."""
    append: int | None = None
    """Id after each document, such as the end of a text; None for none."""
    chat: str | None = None
    """Json field with a text sample's chat, {"messages", "tools"}; None tokenizes `text`."""
    template: str | None = None
    """Path of a chat template; None for the one beside the tokenizer."""
    code: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 1 <= self.max_bytes <= MAX_TEXT_BYTES:
            raise invalid_option("max_bytes", self.max_bytes, f"1 to {MAX_TEXT_BYTES}")
        text_fields = (
            self.text,
            self.image,
            self.video,
            self.audio,
        )
        for name in text_fields:
            if name is not None and _extension(name) != "txt":
                raise InvalidSpec(
                    f"field {name!r} is not text; accepted: names ending in txt",
                    what="field",
                    given=name,
                    accepted="names ending in txt",
                )
        if not _FIELD.fullmatch(self.field):
            raise invalid_option("field", self.field, "'tokens.npy' or '<word>.tokens.npy'")
        self._check_tokenizer()
        if self.chat is not None:
            self._check_chat(self.chat)
        elif self.template is not None:
            raise InvalidSpec(
                "template= is for chats; pass chat=, the field that holds them",
                what="template",
                given=self.template,
            )

    def _check_tokenizer(self) -> None:
        has_tokenizer = self.tokenizer is not None
        has_sha256 = self.sha256 is not None
        if has_tokenizer != has_sha256:
            raise InvalidSpec(
                "tokenizer= and sha256= belong together: pass the file's SHA-256, too",
                what="tokenizer and sha256",
                given=(self.tokenizer, self.sha256),
            )
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise invalid_option("sha256", self.sha256, "64 hexadecimal digits in lower case")

    def _check_chat(self, field: str) -> None:
        if _extension(field) != "json":
            raise invalid_option("chat", field, "names ending in json")
        if self.tokenizer is None or _extension(self.tokenizer) != "json":
            raise InvalidSpec(
                f"chat={field!r} needs a tokenizer.json with special tokens, tokenizer={self.tokenizer!r}",
                what="tokenizer",
                given=self.tokenizer,
                accepted="a tokenizer.json",
            )
        if self.image or self.video or self.audio:
            raise InvalidSpec(
                "chat= is for text samples; tokenize captions by another featurizer and field",
                what="chat",
                given=field,
                accepted="text samples",
            )
        if self.append is not None:
            raise InvalidSpec(
                "append= is for documents; a chat template ends its turns itself",
                what="append",
                given=self.append,
            )

    @property
    def _word(self) -> str:
        match = _FIELD.fullmatch(self.field)
        assert match is not None  # checked at the start
        return match[1] or ""

    @property
    def name(self) -> str:
        """Name of the featurizer."""
        if self._word:
            return f"tokens_{self._word}"
        return "tokens"

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        """Kind -> the field to read."""
        return kind_inputs(
            text=self.chat or self.text,
            image=self.image,
            video=self.video,
            audio=self.audio,
        )

    @property
    def output_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """Fields of every sample."""
        if self.chat is None:
            return (self.field,)
        return (self.field, self._mask_field)

    @property
    def output_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns of every sample."""
        if self.chat is None:
            return (self._column("n_tokens"),)
        return (self._column("n_tokens"), self._column("n_trained"))

    @property
    def version(self) -> str:
        """Version, which also changes with the tokenizer's file and the ids that it gives to a fixed text."""
        parameters = asdict(self)
        # Paths are not in it: a file that moved gives the same tokens.
        del parameters["tokenizer"]
        del parameters["template"]
        for name, default in _LATER_DEFAULTS.items():
            if parameters[name] == default:
                del parameters[name]
        return version_of(
            self.code,
            parameters,
            *self._identities(),
        )

    def _identities(self) -> list[str]:
        """Return what the tokens depend on, beside the parameters. Raises: InvalidSpec for `append`."""
        n_ids = self._n_ids
        if self.append is not None and not 0 <= self.append < n_ids:
            raise InvalidSpec(
                f"append={self.append}; the tokenizer has ids from 0 to {n_ids - 1}",
                what="append",
                where=self.tokenizer,
                given=self.append,
                accepted=f"0 to {n_ids - 1}",
            )
        if self.tokenizer is None or self.sha256 is None:
            return [tekken.SHA256]
        from .tokenizer_file import probe_hash

        identities = [self.sha256, probe_hash(self.tokenizer, self.sha256)]
        if self.chat is not None:
            from .chat_template import read_template

            template = read_template(Path(self.tokenizer), self.template)
            identities.append(template.identity())
        return identities

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Facts of the token field: tokenizer, its SHA-256, number of ids, fields of the texts."""
        text_fields = {kind_field(self.inputs, kind) for kind in self.kinds}
        facts: dict[str, Any] = {
            "tokenizer": tekken.VOCABULARY,
            "tokenizer_sha256": tekken.SHA256,
            "vocabulary": self._n_ids,
            "dims": ["token"],
            "text_fields": sorted(text_fields),
        }
        if self.tokenizer is not None:
            facts["tokenizer"] = Path(self.tokenizer).name
            facts["tokenizer_sha256"] = self.sha256
        if self.append is not None:
            facts["append"] = self.append
        return {self.field: facts}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        if kind != "text" and not sample.get(field):
            n_tokens = None
            if field in sample:
                n_tokens = 0
            return self._features([], n_tokens)
        n_bytes = len(sample.get(field, b""))
        if n_bytes > self.max_bytes:
            raise rejected(
                STAGE,
                "too_large",
                f"{n_bytes} bytes of text; at most {self.max_bytes}",
                given=n_bytes,
                accepted=self.max_bytes,
            )
        if self.chat is not None:
            return self._chat_features(sample, field)
        text: str = decoded(sample, field)
        try:
            ids = self._encode(text)
        except ValueError as error:  # the tokenizer's regular expression exceeds a limit
            raise rejected(STAGE, "untokenizable", error) from error
        if self.append is not None:
            ids = [*ids, self.append]
        return self._features(ids, len(ids))

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None or self.sha256 is None:
            return tekken.encode(text)
        from .tokenizer_file import load_tokenizer

        return load_tokenizer(self.tokenizer, self.sha256).encode(text)

    def _chat_features(self, sample: Mapping[str, bytes], field: str) -> Features:
        from .chat import parse_chat, tokenize_chat
        from .chat_template import read_template
        from .tokenizer_file import load_tokenizer

        assert self.tokenizer is not None  # both are checked at the start
        assert self.sha256 is not None
        chat = parse_chat(decoded(sample, field))
        tokenizer = load_tokenizer(self.tokenizer, self.sha256)
        template = read_template(Path(self.tokenizer), self.template)
        tokens = tokenize_chat(chat, template, tokenizer)
        n_trained = int(tokens.mask.sum())
        features = self._features(tokens.ids, len(tokens.ids))
        return Features(
            fields={
                **features.fields,
                self._mask_field: tokens.mask,
            },
            columns={
                **features.columns,
                self._column("n_trained"): n_trained,
            },
        )

    def _features(self, ids: list[int], n_tokens: int | None) -> Features:
        columns: dict[str, Column] = {self._column("n_tokens"): n_tokens}
        tokens = np.array(ids, self._dtype)
        return Features(fields={self.field: tokens}, columns=columns)

    @property
    def _n_ids(self) -> int:
        if self.tokenizer is None or self.sha256 is None:
            return tekken.N_IDS
        from .tokenizer_file import load_tokenizer

        return load_tokenizer(self.tokenizer, self.sha256).n_ids

    @property
    def _dtype(self) -> type[np.uint16] | type[np.int32]:
        if self._n_ids <= MAX_UINT16_IDS:
            return np.uint16
        return np.int32

    @property
    def _mask_field(self) -> str:
        return self.field.replace("tokens.npy", "mask.npy")

    def _column(self, name: str) -> str:
        if self._word:
            return f"{self._word}_{name}"
        return name


def _extension(field: str) -> str:
    _, _, extension = field.rpartition(".")
    return extension.lower()
