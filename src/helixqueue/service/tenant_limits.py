"""Places of which a process has so many, each of a tenant (postgres/fair_quota.py has the rule)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from helixqueue.postgres.fair_quota import FREE_FACTOR, FairQuota
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator


class TenantLimits:
    """`what` they are, in plural; when there is none, the problem has this `kind`."""

    def __init__(self, most: int, what: str, *, kind: str, retry_after: float) -> None:
        self._shares = FairQuota(most)
        self._what = what
        self._kind = kind
        self._retry_after = retry_after

    @property
    def taken(self) -> int:
        return self._shares.taken

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        self.take(tenant)
        try:
            yield
        finally:
            self.give_back(tenant)

    def take(self, tenant: str) -> None:
        if not self._shares.has_room(tenant):
            raise self._none(self._shares.held_by(tenant))
        self._shares.take(tenant)

    def give_back(self, tenant: str) -> None:
        self._shares.give_back(tenant)

    def _none(self, own: int) -> Problem:
        most = self._shares.size
        if not own:
            return Problem(
                self._kind,
                f"all {most} {self._what} that this process has are taken",
                expected="one that is free",
                got="none",
                retry_after=self._retry_after,
            )
        return Problem(
            self._kind,
            f"the tenant has {own} of the {most} {self._what} that this process has, "
            f"and one tenant has at most {FREE_FACTOR} times as many as it leaves free",
            expected=f"at most {own} of one tenant at this moment",
            got=str(own + 1),
            retry_after=self._retry_after,
        )
