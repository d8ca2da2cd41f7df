"""Fixtures: a service that receives webhooks, and sources of them."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.lab import Lab, new_database
from tests.support.service import TLS, Site, serving, settings_for
from tests.support.webhooks import SECRETS, definition, event_body, signed_headers

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def lab(database):
    """A new queue of tenant a, and a client of the engine."""
    with Lab(database) as lab:
        lab.queue()
        yield lab


@dataclass
class Source:
    """One source of tenant a, its provider, and an administrator."""

    site: Site
    lab: Lab
    name: str
    scheme: str
    admin: httpx.Client
    provider: httpx.Client

    def apply(self, **more):
        body = {"definition": definition(self.scheme, self.lab.q, **more)}
        response = self.admin.put(f"/v1/webhook-sources/{self.name}", json=body)
        assert response.status_code == 200, response.text
        return response.json()["answer"]

    def rotate(self, secret=None, overlap=0.0):
        body = {"secret": secret or SECRETS[self.scheme], "overlap_seconds": overlap}
        response = self.admin.post(f"/v1/webhook-sources/{self.name}/rotate", json=body)
        assert response.status_code == 200, response.text
        return response.json()["number"]

    def send(self, body, headers=None, **signed):
        """One delivery, signed unless its headers are given."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = signed_headers(self.scheme, content, **signed) if headers is None else headers
        return self.provider.post(f"/v1/webhooks/a/{self.name}", content=content, headers=headers)

    def event(self, event=None, **members):
        return event_body(self.scheme, event, **members)

    def deliveries(self):
        response = self.admin.get(f"/v1/webhook-sources/{self.name}/deliveries")
        assert response.status_code == 200, response.text
        return response.json()["rows"]

    def batches(self) -> list[dict[str, Any]]:
        response = self.admin.get("/v1/batches", params={"queue": self.lab.q})
        assert response.status_code == 200, response.text
        rows: list[dict[str, Any]] = response.json()["rows"]
        return rows

    def letters(self):
        rows = self.admin.get("/v1/letters").json()["rows"]
        return [row for row in rows if (row["kind"], row["name"]) == ("webhook", self.name)]


@pytest.fixture
def source_of(site, lab):
    """Makes sources: `source_of("stripe")`, with a secret."""
    with (
        site.client() as admin,
        httpx.Client(base_url=site.url, timeout=30, verify=TLS) as provider,
    ):

        def make(scheme, **more):
            source = Source(site, lab, f"{scheme}-{next(_numbers)}", scheme, admin, provider)
            assert source.apply(**more) == "created"
            source.rotate()
            return source

        yield make
