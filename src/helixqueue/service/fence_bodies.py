"""What clients send about fences."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, StrictBool, StrictInt, model_validator

from helixqueue.service.bodies import Body, IdentityText, Json, Reason, printable

MAX_CALLS = 500  # of one rehearsal


class ResolveBody(Body):
    """A person's decision about a fence in doubt, as it was when the person looked."""

    reason: Reason
    version: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] = Field(
        description="Of the fence that was looked at: if it has moved on, nothing is decided."
    )
    applied: StrictBool = Field(description="Whether it happened.")
    effect: Annotated[str, Field(max_length=255), AfterValidator(printable)] | None = Field(
        None, description="Its id where it happened."
    )
    result: Json = Field(None, description="What repeats get; left out when nobody has it.")
    http_status: Annotated[StrictInt, Field(ge=200, le=499)] | None = Field(
        None, description="Of the answer, if a request is fenced."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        said = self.model_fields_set & {"effect", "result", "http_status"}
        if not self.applied and said:
            raise ValueError(f"{', '.join(sorted(said))}: only of what was applied")
        return self


class FenceCallBody(Body):
    name: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(printable)]
    key: (
        IdentityText
        | StrictInt
        | Annotated[list[IdentityText | StrictInt], Field(min_length=1, max_length=16)]
    )
    payload: Json = Field(None, description="Left out, none is compared.")


class RehearseBody(Body):
    calls: Annotated[list[FenceCallBody], Field(min_length=1, max_length=MAX_CALLS)]
