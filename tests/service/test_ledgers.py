"""User ledgers and feeds over HTTP, and with the Python clients of the service."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from helixqueue import AsyncHelixClient, HelixClient, Machine
from helixqueue.errors import NotPermitted, Refused
from tests.support.service import problem_kind

DISPATCH = Machine({"REQUESTED": ["CONFIRMED", "CANCELLED"], "CONFIRMED": ["LAUNCHED"]})
ARROWS = {kind: list(after) for kind, after in DISPATCH.arrows.items()}


@pytest.fixture
def name():
    return f"l-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def helix(http):
    token = http.headers["authorization"].removeprefix("Bearer ")
    with HelixClient(str(http.base_url), token) as helix:
        yield helix


def append(http, name, entity="d-1", seq=1, kind="REQUESTED", **more):
    body = {"entity": entity, "seq": seq, "kind": kind, **more}
    return http.post(f"/v1/ledgers/{name}/events", json=body)


def test_client_of_the_service_appends_and_reads_like_a_direct_one(helix, name):
    ledger = helix.ledger(name, DISPATCH, ignore=["/trace"])
    first = ledger.append(("drone", "7/a"), 1, "REQUESTED", {"pad": 1, "trace": 1}, node="alp-1")
    again = ledger.append(("drone", "7/a"), 1, "REQUESTED", {"pad": 1, "trace": 2})
    other = ledger.append(("drone", "7/a"), 1, "REQUESTED", {"pad": 2, "trace": 1})
    assert [answer.decision for answer in (first, again, other)] == [
        *("written", "duplicate_suppressed_by_db", "conflict")
    ]
    assert first.key == again.key
    assert first.key.startswith("v2:")
    assert {change["path"]: change["was"] for change in other.diff}["/pad"] == 1
    illegal = ledger.append(("drone", "7/a"), 3, "LAUNCHED")
    assert (illegal.decision, illegal.rules) == ("illegal", ("gap", "arrow"))
    [event] = ledger.history(("drone", "7/a"))
    assert (event.entity, event.node, event.payload) == (
        *(("drone", "7/a"), "alp-1"),
        {"pad": 1, "trace": 1},
    )
    state = ledger.state(("drone", "7/a"))
    assert (state.state, state.seq, state.events) == ("REQUESTED", 1, 1)
    assert ledger.state("unknown") is None
    assert helix.ledger(name).append(("drone", "7/a"), 2, "CONFIRMED").is_new


def test_bulk_append_over_http_answers_each_event(helix, name):
    ledger = helix.ledger(name, DISPATCH)
    answers = ledger.append_many(
        [
            *((f"b-{n}", 1, "REQUESTED", {"text": "x" * 400}) for n in range(1_200)),
            ("b-0", 0, "REQUESTED"),
            ("b-0", 2, "CONFIRMED"),
        ]
    )
    assert [answer.decision for answer in answers] == [
        *["written"] * 1_200,
        *("refused", "written"),
    ]


def test_within_is_refused_by_a_client_of_the_service(helix, name):
    ledger = helix.ledger(name, DISPATCH)
    with pytest.raises(Refused, match="cannot join your transaction"):
        ledger.append("d", 1, "REQUESTED", within=object())


def test_feed_over_http_is_read_confirmed_paused_and_rewound(helix, name):
    ledger = helix.ledger(name, DISPATCH)
    for entity, seq, kind in (("f", 1, "REQUESTED"), ("f", 2, "CONFIRMED"), ("g", 1, "REQUESTED")):
        ledger.append(entity, seq, kind)
    feed = helix.feed(name, ledger=name)
    page = feed.read(2)
    assert [(event.entity, event.seq) for event in page] == [("f", 1), ("f", 2)]
    assert [event.key for event in feed.read(2)] == [event.key for event in page]
    assert feed.confirm(page[:1])
    assert not feed.confirm(page[:1])  # another consumer confirmed it
    assert [event.seq for event in feed.read(5)] == [2, 1]
    assert feed.confirm(feed.read(5))
    status = feed.status()
    assert (status.delivered, status.lag, status.ledger) == (3, 0, name)
    feed.rewind("again")
    assert feed.status().lag == 3
    feed.pause("maintenance")
    assert feed.read() == []
    feed.resume("done")
    assert len(feed.read()) == 3


def test_async_client_of_the_service_appends_and_follows(http, name):
    async def follow() -> list[int]:
        token = http.headers["authorization"].removeprefix("Bearer ")
        async with AsyncHelixClient(str(http.base_url), token) as helix:
            ledger = await helix.ledger(name, DISPATCH)
            await ledger.append("a", 1, "REQUESTED")
            await (await helix.ledger(name)).append("a", 2, "CONFIRMED")
            feed = await helix.feed(name, ledger=name)
            page = await feed.read()
            assert await feed.confirm(page)
            return [event.seq for event in page]

    assert asyncio.run(follow()) == [1, 2]


def test_repeated_confirm_with_its_key_returns_the_first_answer(http, helix, name):
    """The reply of the first was lost; without a key the consumer would see `moved: false`."""
    helix.ledger(name, DISPATCH).append("c", 1, "REQUESTED")
    helix.feed(name, ledger=name)
    page = http.get(f"/v1/feeds/{name}/events").json()
    body = {"after": page["rows"][0]["after"], "to": page["rows"][-1]["position"], "count": 1}
    headers = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
    answers = [
        http.post(f"/v1/feeds/{name}/confirm", json=body, headers=headers).json() for _ in range(2)
    ]
    assert answers == [{"moved": True}] * 2


def test_position_of_another_feed_or_an_invented_one_is_refused(http, helix, name):
    helix.ledger(name, DISPATCH).append("c", 1, "REQUESTED")
    helix.feed(name, ledger=name)
    helix.feed(f"{name}-2", ledger=name)
    [other] = http.get(f"/v1/feeds/{name}-2/events").json()["rows"]
    body = {"after": other["after"], "to": other["position"], "count": 1}
    assert problem_kind(http.post(f"/v1/feeds/{name}/confirm", json=body)) == "refused"
    body["to"] = "A" * 60
    assert problem_kind(http.post(f"/v1/feeds/{name}/confirm", json=body)) == "refused"


def test_positions_reveal_no_shared_numbers(http, helix, name):
    """Transaction numbers would tell a tenant how much the others did in between."""
    helix.ledger(name, DISPATCH).append("c", 1, "REQUESTED")
    helix.feed(name, ledger=name)
    shown = http.get(f"/v1/feeds/{name}").json()
    assert not {"position", "number"} & shown.keys()
    [event] = http.get(f"/v1/feeds/{name}/events").json()["rows"]
    assert not {"xid", "number", "id"} & event.keys()
    assert not [text for text in (event["after"], event["position"]) if name in text]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"seq": 0}, "invalid-request"),
        ({"seq": 2**53 + 1}, "not-json"),  # no exact number in every language
        ({"seq": True}, "invalid-request"),
        ({"seq": 1.0}, "invalid-request"),
        ({"kind": "not a kind"}, "invalid-request"),
        ({"entity": ""}, "invalid-identity"),
        ({"entity": "a\u200bb"}, "invalid-identity"),
        ({"node": "x" * 256}, "invalid-request"),
        ({"colour": "red"}, "invalid-request"),
    ],
)
def test_invalid_event_is_a_problem_with_its_reason(http, helix, name, change, kind):
    helix.ledger(name, DISPATCH)
    response = append(http, name, **change)
    assert problem_kind(response) == kind
    assert response.status_code in {400, 422}


def test_oversized_payload_and_unknown_kind_are_answered(http, helix, name):
    helix.ledger(name, DISPATCH)
    assert append(http, name, payload="x" * 1_048_576).status_code == 413
    answer = append(http, name, kind="EXPLODED").json()
    assert (answer["decision"], answer["rules"]) == ("illegal", ["kind", "initial"])


@pytest.mark.parametrize(
    "body",
    [
        {"arrows": {"A": ["A"]}, "initial": ["A"]},  # no terminal kind
        {"arrows": {"A": ["B"], "C": ["D"]}, "initial": ["A"]},  # C and D are unreachable
        {"arrows": {"A": ["B"], "B": ["A"]}},  # nothing can be first
    ],
)
def test_machine_without_start_or_end_is_refused_over_http(http, name, body):
    response = http.put(f"/v1/ledgers/{name}", json=body)
    assert (response.status_code, problem_kind(response)) == (422, "refused")


def test_redeclared_ledger_may_grow_and_not_change_over_http(http, name):
    def declare(arrows, **options):
        return http.put(f"/v1/ledgers/{name}", json={"arrows": arrows, **options})

    assert declare(ARROWS).status_code == 200
    assert declare({**ARROWS, "CONFIRMED": ["LAUNCHED", "LOST"]}).status_code == 200
    assert problem_kind(declare(ARROWS)) == "refused"
    assert problem_kind(declare(ARROWS, strict=False)) == "refused"
    listed = http.get("/v1/ledgers", params={"limit": 500}).json()["rows"]
    assert [row["arrows"]["CONFIRMED"] for row in listed if row["name"] == name] == [
        ["LAUNCHED", "LOST"]
    ]


def test_unknown_ledger_entity_and_feed_are_problems(http, helix, name):
    assert problem_kind(append(http, name)) == "no-such-ledger"
    assert problem_kind(http.get(f"/v1/ledgers/{name}/events?entity=d")) == "no-such-ledger"
    assert problem_kind(http.get(f"/v1/feeds/{name}/events")) == "no-such-feed"
    missing = http.put(f"/v1/feeds/{name}", json={"ledger": name})
    assert problem_kind(missing) == "no-such-ledger"
    helix.ledger(name, DISPATCH)
    assert problem_kind(http.get(f"/v1/ledgers/{name}/state?entity=d")) == "no-such-entity"
    assert http.get(f"/v1/ledgers/{name}/events?entity=d").json()["rows"] == []


def test_token_without_payloads_sees_neither_payloads_nor_values(site, helix, name):
    helix.ledger(name, DISPATCH).append("d", 1, "REQUESTED", {"pad": "okapi"})
    with site.client("submit", "read", name=f"reader-{name}") as reader:
        assert "okapi" not in reader.get(f"/v1/ledgers/{name}/events?entity=d").text
        conflict = append(reader, name, "d", payload={"pad": "north"})
        assert "okapi" not in conflict.text
        assert conflict.json()["diff"] == [{"op": "replace", "path": "/pad"}]
        assert reader.get(f"/v1/feeds/{name}/events").status_code == 403


def test_token_of_some_queues_has_no_ledgers_and_only_their_feeds(site, helix, lab, name):
    lab.queue()
    helix.ledger(name, DISPATCH)
    helix.feed(name, ledger=name)
    helix.feed(f"{name}-q", queue=lab.q)
    with site.client(queues=[lab.q], name=f"part-{name}") as part:
        assert problem_kind(append(part, name)) == "forbidden"
        assert problem_kind(part.get("/v1/ledgers")) == "forbidden"
        assert problem_kind(part.get(f"/v1/feeds/{name}")) == "no-such-feed"
        assert [
            row["name"] for row in part.get("/v1/feeds", params={"limit": 500}).json()["rows"]
        ] == [f"{name}-q"]
        assert part.get(f"/v1/feeds/{name}-q/events").status_code == 200
        everything = part.put(f"/v1/feeds/{name}-all", json={})
        assert problem_kind(everything) == "forbidden"


def test_page_of_a_feed_is_limited_in_bytes(helix, name):
    """Five hundred payloads of a mebibyte would be half a gigabyte in one response."""
    ledger = helix.ledger(name, DISPATCH)
    for n in range(20):
        ledger.append(f"big-{n}", 1, "REQUESTED", {"text": "x" * 1_000_000})
    feed = helix.feed(name, ledger=name)
    page = feed.read(500)
    assert len(page) == 17
    assert feed.confirm(page)
    assert len(feed.read(500)) == 3


def test_client_without_the_scope_cannot_declare(site, name):
    token = site.token("submit", "read", name=f"writer-{name}")
    with HelixClient(site.url, token) as writer, pytest.raises(NotPermitted, match="operate"):
        writer.ledger(name, DISPATCH)
