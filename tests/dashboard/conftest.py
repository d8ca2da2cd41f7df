"""Fixtures: a service with its dashboard, and people who are signed in."""

from __future__ import annotations

import re
from contextlib import contextmanager

import httpx
import pytest

from tests.support.lab import Lab, new_database
from tests.support.service import TLS, Site, offer_login, serving, settings_for


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


@contextmanager
def sign_in(site, **options):
    """A browser, as far as HTTP goes: it keeps the cookie and sends the Origin of its page."""
    with httpx.Client(
        base_url=site.url, headers={"Origin": site.url}, verify=TLS, timeout=30
    ) as http:
        answer = http.post("/login", data={"code": offer_login(site.database, **options)})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        yield http


def form_of(person, path="/"):
    """The form token of a page."""
    return re.search(r'name="form" value="([0-9a-f]+)"', person.get(path).text)[1]


@pytest.fixture
def person(site):
    with sign_in(site) as http:
        yield http
