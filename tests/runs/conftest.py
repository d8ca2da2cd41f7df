"""Specs of runs, as Falconeri's users write them."""

from __future__ import annotations

import json
import os

import pytest

from helixqueue.runs.spec import load_spec

WORDS = {
    "pipeline": {"name": "word-frequencies"},
    "transform": {"cmd": ["sh", "/word-frequencies.sh"], "image": "example/words"},
    "parallelism_spec": {"constant": 3},
    "resource_requests": {"memory": "500Mi", "cpu": 1.2},
    "datum_tries": 3,
    "input": {"atom": {"URI": "s3://lab/texts/", "repo": "texts", "glob": "/*"}},
    "egress": {"URI": "s3://lab/word-frequencies/"},
}


@pytest.fixture
def words():
    return json.loads(json.dumps(WORDS))


@pytest.fixture
def spec_of():
    """A spec with this input."""

    def make(tree, **members):
        return load_spec(json.dumps(WORDS | {"input": tree} | members))

    return make


@pytest.fixture(scope="session")
def s3():
    """A bucket of a moto server; the environment names it."""
    import boto3  # noqa: PLC0415 - slow to import
    from moto.server import ThreadedMotoServer  # noqa: PLC0415

    if "AWS_ENDPOINT_URL" in os.environ:  # that of other tests
        yield "lab"
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ.update(
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",  # noqa: S106 - of moto
        AWS_REGION="us-east-1",
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
    )
    boto3.client("s3").create_bucket(Bucket="lab")
    yield "lab"
    os.environ.clear()
    os.environ.update(before)
    server.stop()
