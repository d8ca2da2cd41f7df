"""Destinations in a directory and on S3 (moto), and what stands there."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from pathlib import Path

import pytest

from helixqueue import HelixQueue
from helixqueue.engine import calls, outputs
from helixqueue.outputs.object_store import s3_client
from helixqueue.outputs.publish import Publisher
from helixqueue.outputs.stores import open_store
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.postgres.database import Database as Connection
from helixqueue.records.lease import LeaseRef
from helixqueue.records.output import StagedFile
from tests.support.lab import engine_function, new_database
from tests.support.shift import Shift

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture
def helix(database):
    with HelixQueue(database.dsn("pool"), tenant="a") as client:
        yield client


@pytest.fixture
def shift():
    return Shift


@pytest.fixture
def name():
    return f"out{next(_numbers)}"


@pytest.fixture(scope="session")
def s3():
    """A moto server; the environment names it."""
    import boto3  # noqa: PLC0415 - slow to import
    from moto.server import ThreadedMotoServer  # noqa: PLC0415

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    before = dict(os.environ)
    os.environ.update(environment)
    s3_client.cache_clear()
    boto3.client("s3").create_bucket(Bucket="lab")
    yield "lab"
    os.environ.clear()
    os.environ.update(before)
    server.stop()


class Destination:
    """Where a test publishes; `files` is what stands there."""

    def __init__(self, uri):
        self.uri = uri

    @property
    def store(self):
        return open_store(self.uri)

    def allow(self, database, tenant="a"):
        with Connection.connect(database.dsn("operator")) as operator:
            operator.run(outputs.set_root(tenant=tenant, uri=self.uri, reason="test"))
        return self

    def use(self, database, queue, tenant="a", **settings):
        """Make the destination that of a queue."""
        with Connection.connect(database.dsn("pool")) as pool:
            pool.run(calls.set_queue(tenant=tenant, queue=queue, outputs=self.uri, **settings))


class Directory(Destination):
    def __init__(self, root):
        super().__init__(f"file://{root}")
        self.root = Path(root)

    def names(self):
        found = (path for path in self.root.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)) for path in found}

    def read(self, name):
        return (self.root / name).read_bytes()

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Bucket(Destination):
    def __init__(self, bucket, prefix):
        import boto3  # noqa: PLC0415

        super().__init__(f"s3://{bucket}/{prefix}")
        self._client = boto3.client("s3")
        self._place = (bucket, prefix)

    def names(self):
        bucket, prefix = self._place
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=f"{prefix}/"
        )
        keys = (item["Key"] for page in pages for item in page.get("Contents", ()))
        return {key.removeprefix(f"{prefix}/") for key in keys}

    def read(self, name):
        bucket, prefix = self._place
        return self._client.get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"].read()

    def write(self, name, content):
        bucket, prefix = self._place
        self._client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=content)


def published(destination, folder=""):
    """The names that readers see, staging left out."""
    return {
        name for name in destination.names()
        if not name.startswith(".helix/") and name.startswith(folder)
    }  # fmt: skip


def staged(destination):
    return {name for name in destination.names() if name.startswith(".helix/")}


@pytest.fixture
def directory(tmp_path, database):
    root = tmp_path / "store"
    root.mkdir()
    return Directory(root).allow(database)


@pytest.fixture(params=["directory", "s3"])
def destination(request, database):
    if request.param == "directory":
        return request.getfixturevalue("directory")
    return Bucket(request.getfixturevalue("s3"), f"d{next(_numbers)}").allow(database)


def publish(database, manifests=None, role="pool"):
    """Do what a publisher does that has just started; returns its tasks."""

    async def run():
        connection = await AsyncDatabase.connect(database.dsn(role))
        try:
            return await Publisher(connection.run, outputs).publish(manifests)
        finally:
            await connection.close()

    return asyncio.run(run())


def due_now(database):
    """Let the grace time of lost attempts pass, and the minute of tasks that were taken."""
    with engine_function(database) as execute:
        assert execute(
            "update helix.manifest set due_at = '-infinity' where due_at is not null"
        ) is None  # fmt: skip


def manifests(database, **options):
    with Connection.connect(database.dsn("pool")) as pool:
        return list(pool.run(outputs.manifests(tenant="a", limit=500, **options)).rows)


def sealed_files(database, batch_id):
    """What a reader gets: path, name, size and hash of each file."""
    with Connection.connect(database.dsn("pool")) as pool:
        return list(pool.run(outputs.outputs(batch_id=batch_id, limit=5000)).rows)


def demand_complete(database, destination, batch_id):
    """What stands at the destination is the sealed manifest, byte by byte; returns the contents."""
    [manifest] = [row for row in manifests(database, ids=[batch_id]) if row.state == "sealed"]
    files = sealed_files(database, batch_id)
    assert len(files) == manifest.files
    names = {file.uri.removeprefix(f"{destination.uri}/"): file for file in files}
    assert published(destination, f"{manifest.folder}/") == names.keys()
    contents = {}
    for name, file in names.items():
        content = contents[file.path] = destination.read(name)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)
    return contents


def files(*names, content="x"):
    sha256 = hashlib.sha256(content.encode()).digest()
    return [StagedFile(name, len(content), sha256) for name in names]


def register(lab, lease, staged, *, first=0, files=None, worker=None):
    ref, worker = LeaseRef(lease.batch, lease.token), worker or lab.worker
    opened = lab.run(outputs.open_outputs(worker=worker, lease=ref))
    if opened.answer != "ok":
        return opened
    return lab.run(
        outputs.register_outputs(worker=worker, lease=ref, first=first, staged=staged, files=files)
    )


def leased(lab, identity="s"):
    lab.submit(identity)
    [lease] = lab.claim()
    return lease
