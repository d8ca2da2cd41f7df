"""Results of workers against the schema of their queue.

Workers of this package check results themselves; programs that speak HTTP may not. A result that
breaks the schema is never stored: the attempt fails, with the same class of failure as in a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helixqueue.errors import InvalidPayload
from helixqueue.records.lease import Settlement
from helixqueue.service.compute_threads import is_large
from helixqueue.worker.outcomes import FailureClass, storable

if TYPE_CHECKING:
    from helixqueue.operations.prepare import KnownQueue
    from helixqueue.service.compute_threads import ComputeThreads
    from helixqueue.service.principal import Principal


async def check_results(
    principal: Principal,
    compute: ComputeThreads,
    settlements: Sequence[Settlement],
    names: Mapping[int, str],
    body: bytes,
) -> list[Settlement]:
    """The settlements; those whose result breaks the schema as failures.

    `names` are the queues by batch.
    """
    queues: dict[int, KnownQueue] = {}  # by batch, where the queue has a schema
    for settlement in settlements:
        if settlement.outcome != "completed":
            continue
        queue = names[settlement.batch]
        known = await principal.run_instructions(principal.operations.known(queue))
        if known.row.result_schema:
            queues[settlement.batch] = known
    if not queues:
        return list(settlements)
    is_quick = not is_large(body) and all(
        known.has_compiled_result and known.checks_inline(len(body)) for known in queues.values()
    )
    if is_quick:
        return _checked(settlements, queues)
    return await compute.run(principal.tenant, _checked, settlements, queues)


def _checked(
    settlements: Sequence[Settlement], queues: Mapping[int, KnownQueue]
) -> list[Settlement]:
    return [
        _checked_result(settlement, queues[settlement.batch])
        if settlement.outcome == "completed" and settlement.batch in queues
        else settlement
        for settlement in settlements
    ]


def _checked_result(settlement: Settlement, known: KnownQueue) -> Settlement:
    try:
        if known.compiled_result is not None:
            # Without a result there is nothing but null to check.
            known.compiled_result.check(settlement.result or "null", "result")
    except InvalidPayload as error:
        return Settlement(
            settlement.batch,
            settlement.token,
            "failed",
            failure=FailureClass.RESULT.value,
            detail=storable(f"the result does not match the queue's result type: {error}"),
        )
    return settlement
