"""Sources of webhooks: the scheme of their signatures, and what their events become.

A source is declared in YAML (`source_file.py`) or in Python:

    stripe = WebhookSource(name="stripe", scheme="stripe", mappings=(
        WebhookMapping(events=("invoice.paid",), queue="invoices", identity=("/data/object/id",)),
    ))
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from helixqueue.errors import Refused
from helixqueue.fence.policy import DAY, Between, HeaderName, Matching
from helixqueue.records.parameter import NAME_PATTERN
from helixqueue.webhook.schemes import HmacLayout, SchemeName, signs_timestamp
from helixqueue.yaml_document import expected_and_got

DEFINITION_BYTES_MAX: Final = 65_536
FOR_EVER_SECONDS: Final = 3e9  # 95 years
# Days for which deliveries are remembered: three times the provider's retry horizon, at least 7.
KEEP_DAYS: Final = {"standard": 14.0, "stripe": 9.0, "slack": 7.0, "hmac": 14.0}
# Seconds after which a provider gets an answer, so that it still waits for it.
ANSWER_SECONDS: Final = {"standard": 9.0, "stripe": 9.0, "github": 9.0, "slack": 2.5, "hmac": 9.0}
EVERY: Final = "*"
_CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True)
_Name = Annotated[str, Matching(NAME_PATTERN[1:-1], "a name such as stripe-live")]
_POINTER = r"(/([^/~]|~[01]){0,100}){1,16}"
_Pointer = Annotated[str, Matching(_POINTER, "a JSON Pointer such as /data/id")]
_Place = Annotated[
    str,
    Matching(rf"{_POINTER}|[A-Za-z0-9-]{{1,100}}", "a JSON Pointer or the name of a header"),
]
_EventType = Annotated[str, Matching(r"[!-~]{1,200}", "an event type such as invoice.paid, or *")]


def _listed(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


class SignatureLayout(BaseModel):
    """Where a provider with the scheme `hmac` writes its signature."""

    model_config = _CONFIG
    header: HeaderName
    prefix: Annotated[str, Matching(r"[!-~]{0,40}", "up to 40 printable characters")] = ""
    encoding: Literal["hex", "base64"] = "hex"
    algorithm: Literal["sha256", "sha512"] = "sha256"
    timestamp: HeaderName | None = None

    @property
    def layout(self) -> HmacLayout:
        return HmacLayout(**self.model_dump())


class WebhookMapping(BaseModel):
    """What events of some types become: a submission to a queue, or an effect in Python."""

    model_config = _CONFIG
    events: Annotated[tuple[_EventType, ...], BeforeValidator(_listed), Field(min_length=1)]
    queue: _Name | None = None  # None: an effect in Python
    identity: Annotated[tuple[_Pointer, ...], BeforeValidator(_listed)] = ()
    revision: _Pointer | None = None
    payload: _Pointer | None = None  # None: the whole body
    action: _Pointer | None = None  # with the event id, tells deliveries apart
    entity: _Pointer | None = None
    version: _Pointer | None = None
    order: Literal["version", "time", "none"] = "none"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.order != "none" and (self.entity is None or self.version is None):
            raise PydanticCustomError(
                "expected", f"entity and version for `order: {self.order}`: they say what is newer"
            )
        return self


class WebhookSource(BaseModel):
    """One provider's endpoint."""

    model_config = _CONFIG
    name: _Name
    scheme: SchemeName
    mappings: Annotated[tuple[WebhookMapping, ...], BeforeValidator(_listed), Field(min_length=1)]
    tolerance_seconds: Annotated[float, Between(1, 3600, "seconds")] = 300.0
    keep_days: Annotated[float, Between(7, 3650, "days")] | None = None
    dedupe_body: bool = False
    superseded: Literal[200, 409] = 200  # the status of an older version
    signature: SignatureLayout | None = None
    id: _Place | None = None
    type: _Place | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.scheme == "hmac") != (self.signature is not None):
            raise PydanticCustomError(
                "expected", "`signature` for the scheme hmac, and only for it"
            )
        if (self.scheme == "hmac") != (self.id is not None):
            raise PydanticCustomError("expected", "`id` for the scheme hmac, and only for it")
        if self.type is not None and self.scheme not in {"hmac", "standard"}:
            raise PydanticCustomError("expected", "`type` for the schemes hmac and standard only")
        if self.keep_days is not None and not self._expires:
            raise PydanticCustomError(
                "expected",
                "no keep_days: without a signed timestamp a delivery can be replayed at any time, "
                "so deliveries are remembered for ever",
            )
        types = [event for mapping in self.mappings for event in mapping.events]
        if len(set(types)) < len(types):
            twice = next(event for event in types if types.count(event) > 1)
            raise PydanticCustomError(
                "expected", "each event type once, got {twice} again", {"twice": twice}
            )
        return self

    @property
    def _expires(self) -> bool:
        return signs_timestamp(self.scheme, self.layout)

    @property
    def layout(self) -> HmacLayout | None:
        return None if self.signature is None else self.signature.layout

    @property
    def keep_seconds(self) -> float:
        """How long deliveries are remembered."""
        if not self._expires:
            return FOR_EVER_SECONDS
        return DAY * (self.keep_days or KEEP_DAYS[self.scheme])

    def mapping(self, event_type: str) -> WebhookMapping | None:
        """The mapping of an event type; None if the source has none for it."""
        named = (mapping for mapping in self.mappings if event_type in mapping.events)
        every = (mapping for mapping in self.mappings if EVERY in mapping.events)
        return next(named, None) or next(every, None)

    def text(self) -> str:
        """The definition as it is stored; raises `Refused` if it is too large."""
        text = self.model_dump_json(exclude_defaults=True)
        if len(text.encode()) > DEFINITION_BYTES_MAX:
            raise Refused(
                f"webhook {self.name}: expected a definition of at most {DEFINITION_BYTES_MAX} "
                f"bytes, got {len(text.encode())}; split it into several sources"
            )
        return text


@lru_cache(maxsize=256)
def stored_source(definition: str) -> WebhookSource:
    return WebhookSource.model_validate_json(definition, strict=True)


def source_of(definition: Any) -> WebhookSource:  # noqa: ANN401 - JSON
    """The source that JSON describes; raises `Refused` with every fault."""
    try:
        return WebhookSource.model_validate_json(json.dumps(definition), strict=True)
    except ValidationError as error:
        faults = []
        for detail in error.errors()[:20]:
            expected, got = expected_and_got(detail)
            place = ".".join(map(str, detail["loc"])) or "source"
            faults.append(f"{place}: expected {expected}, got {got}")
        raise Refused("webhook: " + "; ".join(faults)) from None
