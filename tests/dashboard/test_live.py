"""Streams that keep open pages up to date."""

from __future__ import annotations

from contextlib import ExitStack

from tests.dashboard.conftest import sign_in
from tests.support.service import Site, serving, settings_for

GRACE_SECONDS = 5  # after which a service cuts off what is open; keepalives are 10 s apart


def test_stream_of_an_open_page_is_ended_and_not_cut_off_when_the_service_stops(database):
    with ExitStack() as streams:
        with serving(settings_for(database), GRACE_SECONDS) as url:
            person = streams.enter_context(sign_in(Site(database, url)))
            stream = streams.enter_context(person.stream("GET", "/live?of=/letters"))
            lines = stream.iter_lines()
            assert any(line == "event: page" for line in lines)  # now it waits for a change
        for _ in lines:  # raises RemoteProtocolError where the end of the response is missing
            pass
