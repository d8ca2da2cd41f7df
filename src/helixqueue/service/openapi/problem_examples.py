"""Examples of problems."""

from __future__ import annotations

from typing import Any, Final

BATCH: Final = "3f6c1f5e-5d0a-5c1b-9a51-0c5a6f5d2b7e"
FENCE: Final = "v1:4c0d9e1f6b2a7d5e8c3f0a9b4d1e6c7f2a5b8d0e3c6f9a1b4d7e0c3f6a9b2d5e"

# Members besides the defaults of problems.py.
PROBLEMS: Final[dict[str, dict[str, Any]]] = {
    "not-http": {"detail": "Invalid HTTP request received."},
    "invalid-host": {"detail": "the request has no Host header", "got": "none"},
    "not-json": {
        "detail": "body at '/payload': expected each name once in an object; got it again. Keep "
        "one of the two",
        "code": "duplicate-name",
        "pointer": "/payload",
    },
    "unauthenticated": {
        "detail": "expected a valid token, got an unknown, expired or revoked token"
    },
    "forbidden": {
        "detail": "the operation requires the scope operate",
        "expected": "a token with the scope operate",
        "got": "a token with read, submit",
    },
    "not-found": {"detail": "no operation has this path"},
    "no-such-batch": {"detail": f"the tenant has no batch {BATCH}", "got": BATCH},
    "no-such-queue": {"detail": "the tenant has no queue basecall", "got": "basecall"},
    "no-such-fence": {"detail": "the tenant has no such fence", "got": FENCE},
    "no-such-worker": {"detail": "0 workers have the name 'gpu-9'", "got": "gpu-9"},
    "no-such-letter": {"detail": "the tenant has no dead letter 7", "got": "7"},
    "no-such-ledger": {"detail": "the tenant has no ledger dispatch", "got": "dispatch"},
    "no-such-entity": {"detail": "the ledger has no event of this entity"},
    "no-such-feed": {"detail": "the tenant has no feed notify", "got": "notify"},
    "no-such-login": {"detail": "the code is unknown, used or expired"},
    "no-such-token": {"detail": "the tenant has no valid token uploader"},
    "method-not-allowed": {
        "detail": "the path supports GET, PUT",
        "expected": "GET, PUT",
        "got": "DELETE",
    },
    "too-slow": {"detail": "expected the body within 15 s"},
    "conflict": {
        "detail": "'S-1' was submitted to queue basecall with another payload; they differ at "
        "/pod5; send the same payload, or use a new revision",
        "diff": [{"op": "replace", "path": "/pod5", "value": "b.pod5", "was": "a.pod5"}],
    },
    "illegal-transition": {"detail": f"retry: batch {BATCH} is COMPLETED"},
    "queue-closed": {"detail": "queue basecall is closed; an operator opens it"},
    "queue-not-empty": {"detail": "queue basecall has or had batches, so it stays"},
    "not-in-doubt": {
        "detail": "the fence is SEALED, version 3; nothing was changed",
        "expected": "IN_DOUBT, version 2",
        "got": "SEALED, version 3",
        "state": "SEALED",
        "version": 3,
    },
    "name-taken": {"detail": "a token uploader exists or existed"},
    "body-too-large": {
        "detail": "a body has at most 1048576 bytes",
        "expected": "at most 1048576 bytes",
        "got": "more",
    },
    "unsupported-media-type": {"detail": "the Content-Type is not JSON", "got": "text/csv"},
    "invalid-request": {
        "detail": "/body/priority: expected less than or equal to 9, got a number",
        "expected": "less than or equal to 9",
        "got": "a number",
        "faults": [
            {
                "where": "/body/priority",
                "expected": "less than or equal to 9",
                "got": "a number",
            }
        ],
    },
    "invalid-identity": {
        "detail": "a zero-width space (U+200B) is not allowed, at offset 3",
        "code": "zero-width",
        "code_point": "U+200B",
        "offset": 3,
        "part": 0,
    },
    "invalid-payload": {
        "detail": '"pod5" is a required property',
        "code": "schema",
        "pointer": "",
    },
    "refused": {"detail": "expires_at is before run_at"},
    "too-many-requests": {
        "detail": "the token is limited to 500 requests per second with bursts of 1000",
        "expected": "at most 500 requests per second with bursts of 1000",
    },
    "queue-full": {
        "detail": "queue basecall has 100000 pending batches; its limit is 100000",
        "expected": "at most 100000 pending",
        "got": "100001",
        "pending": 100_000,
        "limit": 100_000,
    },
    "too-many-streams": {
        "detail": "the tenant uses 48 of the 64 streams of this process; a tenant may use at most "
        "3 times as many as are free",
        "expected": "at most 48 per tenant at the moment",
        "got": "49",
    },
    "no-key": {"detail": "the service has no key to sign with; start it with --key"},
    "check-under-way": {
        "detail": "the tenant uses 1 of the 2 checks and replays of this process; a tenant may use "
        "at most 3 times as many as are free",
        "expected": "at most 1 per tenant at the moment",
        "got": "2",
    },
    "head-too-large": {"detail": "a request head has at most 32768 bytes"},
    "internal": {"detail": "the service's log has the error under the request id"},
    "unavailable": {"detail": "The database is unreachable", "outcome_unknown": False},
    "retryable": {"detail": "A concurrent transaction interfered"},
    "too-busy": {
        "detail": "2000 requests are in progress",
        "expected": "at most 2000 at a time",
        "got": "one more",
    },
    "not-ready": {"detail": "the database schema does not match this release; run helixq migrate"},
}
