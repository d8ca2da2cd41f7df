"""Deliveries of providers, signed by libraries of others or as the providers document it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import time
from datetime import UTC, datetime

import standardwebhooks
import stripe

SECRETS = {
    "standard": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "stripe": "whsec_5ddd7b1a9e4f4c6f9d9f1e0a",
    "github": "It's a Secret to Everybody",
    "slack": "8f742231b10e8888abcd99yyyzzz85a5",
    "hmac": "a shared secret of thirty bytes",
}
LAYOUT = {"header": "X-Signature", "timestamp": "X-Timestamp", "encoding": "base64"}
SCHEMES = tuple(SECRETS)
_numbers = itertools.count(1)


def event_body(scheme, event=None, **members):
    """The body of an event with an id of its own, where the scheme has the id in its body."""
    event = event or f"evt_{next(_numbers)}"
    named = {"slack": "event_id"}.get(scheme, "id")
    inner = (
        {"event": {"type": "sample.arrived"}} if scheme == "slack" else {"type": "sample.arrived"}
    )
    return json.dumps({named: event, **inner, **members}).encode()


def signed_headers(scheme, body, *, secret=None, at=None, event="evt_1", kind="sample.arrived"):
    """The headers with which a provider sends this body."""
    secret = secret or SECRETS[scheme]
    at = int(time.time() if at is None else at)
    match scheme:
        case "standard":
            moment = datetime.fromtimestamp(at, UTC)
            signature = standardwebhooks.Webhook(secret).sign(event, moment, body.decode())
            return {
                "webhook-id": event, "webhook-timestamp": str(at), "webhook-signature": signature,
            }  # fmt: skip
        case "stripe":
            signed = f"{at}.{body.decode()}"
            value = stripe.WebhookSignature._compute_signature(signed, secret)
            return {"stripe-signature": f"t={at},v1={value}"}
        case "github":
            value = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
            return {
                "x-hub-signature-256": f"sha256={value}", "x-github-delivery": event,
                "x-github-event": kind,
            }  # fmt: skip
        case "slack":
            signed = b"v0:%d:%b" % (at, body)
            value = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
            return {"x-slack-signature": f"v0={value}", "x-slack-request-timestamp": str(at)}
        case "hmac":
            signed = b"%d.%b" % (at, body)
            value = base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest())
            return {"x-signature": value.decode(), "x-timestamp": str(at)}
    raise AssertionError(scheme)


def definition(scheme, queue, **more):
    """A source whose events become batches with the member `sample` as identity."""
    mapping = {"events": "sample.arrived", "queue": queue, "identity": "/sample"}
    mapping |= more.pop("mapping", {})
    named = {"signature": LAYOUT, "id": "/id"} if scheme == "hmac" else {}
    return {"scheme": scheme, "mappings": [mapping], **named, **more}


def raw(headers):
    """Headers as ASGI has them."""
    return [(name.encode(), value.encode()) for name, value in headers.items()]
