"""Per-process limits, shared fairly between tenants (postgres/fairness.py has the rule)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from helixqueue.postgres.fairness import FREE_FACTOR, FairQuota
from helixqueue.service.problems import Problem


class TenantLimits:
    """`what` names the limited thing in the plural; `kind` is the problem when none is free."""

    def __init__(self, most: int, what: str, *, kind: str, retry_after: float) -> None:
        self._quota = FairQuota(most)
        self._what = what
        self._kind = kind
        self._retry_after = retry_after

    @property
    def taken(self) -> int:
        return self._quota.taken

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        self.take(tenant)
        try:
            yield
        finally:
            self._quota.give_back(tenant)

    def take(self, tenant: str) -> None:
        if not self._quota.take(tenant):
            raise self._exceeded(self._quota.by_tenant[tenant])

    def give_back(self, tenant: str) -> None:
        self._quota.give_back(tenant)

    def _exceeded(self, own: int) -> Problem:
        most = self._quota.size
        if not own:
            return Problem(
                self._kind,
                f"all {most} {self._what} of this process are in use",
                expected="a free one",
                got="none",
                retry_after=self._retry_after,
            )
        return Problem(
            self._kind,
            f"the tenant uses {own} of the {most} {self._what} of this process; "
            f"a tenant may use at most {FREE_FACTOR} times as many as are free",
            expected=f"at most {own} per tenant at the moment",
            got=str(own + 1),
            retry_after=self._retry_after,
        )
