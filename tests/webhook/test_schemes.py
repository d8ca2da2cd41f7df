"""Signature schemes: deliveries of independent signers are accepted, everything else is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import time

import pytest

from helixqueue.errors import BadSignature, Refused
from helixqueue.webhook.operations import authenticate
from helixqueue.webhook.schemes import (
    SECRETS_MAX,
    HmacLayout,
    check_secret,
    signs_timestamp,
    verify,
)
from tests.support.webhooks import LAYOUT, SCHEMES, SECRETS, event_body, raw, signed_headers

LAYOUTS = {"hmac": HmacLayout(LAYOUT["header"], encoding="base64", timestamp=LAYOUT["timestamp"])}
TIMED = [scheme for scheme in SCHEMES if signs_timestamp(scheme, LAYOUTS.get(scheme))]


def judged(scheme, headers, body, secrets=None, **options):
    keys = [secret.encode() for secret in secrets or [SECRETS[scheme]]]
    options.setdefault("now", time.time())
    return verify(scheme, raw(headers), body, keys, layout=LAYOUTS.get(scheme), **options)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_delivery_of_an_independent_signer_is_accepted(scheme):
    body = event_body(scheme)
    assert judged(scheme, signed_headers(scheme, body), body) is None


def test_documented_example_of_github_is_accepted():
    # docs.github.com, "Validating webhook deliveries", test values.
    value = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert judged("github", {"X-Hub-Signature-256": value}, b"Hello, World!") is None


def test_documented_example_of_slack_is_accepted():
    # api.slack.com, "Verifying requests from Slack".
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
        b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
        b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "X-Slack-Request-Timestamp": "1531420618",
    }
    assert judged("slack", headers, body, now=1531420618) is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_forged_delivery_is_refused(scheme):
    body = event_body(scheme)
    headers = signed_headers(scheme, body)
    assert judged(scheme, headers, body + b" ") == "signature"
    assert judged(scheme, headers, body, ["another secret of length"]) == "signature"
    for name in headers:
        if name not in {"x-github-delivery", "x-github-event"}:
            rest = {key: value for key, value in headers.items() if key != name}
            assert judged(scheme, rest, body) == "missing"


@pytest.mark.parametrize("scheme", TIMED)
def test_expired_delivery_is_refused(scheme):
    body, now = event_body(scheme), 1_700_000_000
    headers = signed_headers(scheme, body, at=now)
    assert judged(scheme, headers, body, now=now + 299) is None
    assert judged(scheme, headers, body, now=now + 301) == "expired"
    assert judged(scheme, headers, body, now=now - 301) == "expired"


@pytest.mark.parametrize("scheme", TIMED)
def test_timestamp_of_another_delivery_is_refused(scheme):
    body, now = event_body(scheme), 1_700_000_000
    old, new = (signed_headers(scheme, body, at=at) for at in (now - 1_000, now))
    for name in old:
        mixed = {**old, name: new[name]}
        if scheme == "stripe":
            mixed = {name: old[name].replace(str(now - 1_000), str(now))}
        assert judged(scheme, mixed, body, now=now) in {"signature", "expired"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_delivery_signed_with_either_of_two_secrets_is_accepted(scheme):
    body = event_body(scheme)
    other = "whsec_" + "QUJD" * 8
    for secret in (SECRETS[scheme], other):
        headers = signed_headers(scheme, body, secret=secret)
        assert judged(scheme, headers, body, [SECRETS[scheme], other]) is None


def test_delivery_with_several_signatures_is_accepted_for_one_of_them():
    body = event_body("stripe")
    name, good = signed_headers("stripe", body).popitem()
    _, bad = signed_headers("stripe", body, secret=SECRETS["standard"]).popitem()
    bad = bad.partition("v1=")[2]
    assert judged("stripe", {name: f"{good},v1={bad},v0=zz"}, body) is None
    headers = signed_headers("standard", body)
    headers["webhook-signature"] = f"v1a,eHg= v1,{'A' * 43}= {headers['webhook-signature']}"
    assert judged("standard", headers, body) is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_signature_header_that_occurs_twice_is_refused(scheme):
    body = event_body(scheme)
    headers = raw(signed_headers(scheme, body))
    secrets = [SECRETS[scheme].encode()]
    layout = LAYOUTS.get(scheme)
    for header in headers:
        if header[0] not in {b"x-github-delivery", b"x-github-event"}:
            twice = verify(
                scheme, [*headers, header], body, secrets, now=time.time(), layout=layout
            )
            assert twice == "missing"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_secret_refuses_every_delivery(scheme):
    body = event_body(scheme)
    headers = raw(signed_headers(scheme, body))
    layout = LAYOUTS.get(scheme)
    assert verify(scheme, headers, body, [], now=time.time(), layout=layout) == "signature"


def test_hostile_headers_and_bodies_give_a_reason_and_no_error():
    chance, refused = random.Random(7), 0
    pieces = [
        *(b"t=", b"v1=", b"v1,", b",", b" ", b"=", b"sha256=", b"v0=", b"0" * 64, b"A" * 44),
        *(b"9" * 400, b"-1", b"1e9", b"\xff\x00", b"inf", b"\xd9\xa1", b"==", b"v1,v1,"),
    ]
    for number in range(10_000):
        scheme = SCHEMES[number % len(SCHEMES)]
        body = event_body(scheme)
        headers = dict(raw(signed_headers(scheme, body)))
        for name in chance.sample(sorted(headers), chance.randint(1, len(headers))):
            value = bytearray(headers[name])
            if chance.random() < 0.5:
                value = bytearray(b"".join(chance.choices(pieces, k=chance.randint(0, 9))))
            else:
                value[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
            headers[name] = bytes(value)
        secrets = [SECRETS[scheme].encode()]
        layout = LAYOUTS.get(scheme)
        found = verify(scheme, headers.items(), body, secrets, now=time.time(), layout=layout)
        assert found in {None, "missing", "malformed", "expired", "signature"}
        refused += found is not None
    # The id and the type of GitHub are not signed; base64 and hexadecimal have two spellings.
    assert refused > 8_500


def test_body_is_hashed_as_often_whatever_is_wrong_with_a_delivery(monkeypatch):
    # Else the time of a refusal would tell whether a source exists, and how many secrets it has.
    hashed = []
    new = hmac.new
    bodies = {scheme: event_body(scheme) for scheme in SCHEMES}
    signed = {scheme: raw(signed_headers(scheme, body)) for scheme, body in bodies.items()}

    def counted(*arguments):
        hashed[-1] += 1
        return new(*arguments)

    monkeypatch.setattr(hmac, "new", counted)
    for scheme, good in signed.items():
        broken = [(name, b"?") for name, _ in good]
        for headers in (good, broken, [], good * 2):
            for secrets in ([], [SECRETS[scheme].encode()], [SECRETS[scheme].encode()] * 7):
                hashed.append(0)
                layout = LAYOUTS.get(scheme)
                verify(scheme, headers, bodies[scheme], secrets, now=time.time(), layout=layout)
    hashed.append(0)
    with pytest.raises(BadSignature):
        authenticate(None, signed["stripe"], bodies["stripe"])
    assert set(hashed) == {SECRETS_MAX}


def test_secret_of_another_scheme_is_not_an_empty_key():
    # An administrator changes the scheme of a source and leaves its secret.
    body, at = event_body("standard"), int(time.time())
    digest = hmac.new(b"", b"evt_1.%d.%b" % (at, body), hashlib.sha256).digest()
    headers = {
        "webhook-id": "evt_1", "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }  # fmt: skip
    for secret in (SECRETS["github"], "whsec_"):
        assert judged("standard", headers, body, [secret]) == "signature"


def test_secret_that_a_scheme_cannot_use_is_refused():
    secret = SECRETS["standard"].encode()
    assert check_secret("standard", b" %b\n" % secret) == secret
    for scheme, text in (("standard", b"whsec_not base64 at all!!"), ("github", b"short")):
        with pytest.raises(Refused, match="secret: expected"):
            check_secret(scheme, text)
