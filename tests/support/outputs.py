"""A batch with one published output file, without a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.engine import outputs
from helixqueue.postgres.database import Database as Connection
from helixqueue.records.lease import LeaseRef
from helixqueue.records.output import StagedFile

if TYPE_CHECKING:
    import uuid

    from tests.support.lab import Lab


def publish_output(
    lab: Lab, queue: str, tenant: str = "a", path: str = "reads/a.fastq"
) -> uuid.UUID:
    """Submit, complete and seal a batch of that queue; returns its id."""
    uri = "s3://lab/runs"
    with Connection.connect(lab.database.dsn("operator")) as operator:
        operator.run(outputs.set_root(tenant=tenant, uri=uri, reason="new store"))
    lab.queue(queue, tenant, outputs=uri)
    [row] = lab.submit("Sample-07", tenant=tenant, queue=queue)
    [lease] = lab.claim(queues=[queue], tenant=tenant)
    ref = LeaseRef(lease.batch, lease.token)
    lab.run(outputs.open_outputs(worker=lab.worker, lease=ref))
    staged = [StagedFile(path, 4_180_332, b"h" * 32)]
    answer = lab.run(
        outputs.register_outputs(worker=lab.worker, lease=ref, first=0, staged=staged, files=1)
    )
    lab.complete(lease)
    lab.run(outputs.take_outputs(limit=1, manifests=[answer.manifest]))
    lab.run(outputs.end_outputs(manifest=answer.manifest, outcome="sealed", files=1))
    assert row.receipt is not None
    return row.receipt.batch_id
