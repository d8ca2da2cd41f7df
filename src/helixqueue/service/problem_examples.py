"""The part of the story in examples.py where something is refused."""

from __future__ import annotations

from typing import Any, Final

from helixqueue.service.fence_examples import FENCE

BATCH: Final = "3f6c1f5e-5d0a-5c1b-9a51-0c5a6f5d2b7e"

# What a problem says besides what problems.py has for all of its kind.
PROBLEMS: Final[dict[str, dict[str, Any]]] = {
    "not-http": {"detail": "Invalid HTTP request received."},
    "not-json": {
        "detail": "body at '/payload': expected each name once in an object; got it again. Keep "
        "one of the two",
        "code": "duplicate-name",
        "pointer": "/payload",
    },
    "unauthenticated": {"detail": "the token is unknown, expired or revoked"},
    "forbidden": {
        "detail": "this needs the scope operate",
        "expected": "a token with the scope operate",
        "got": "one with read, submit",
    },
    "not-found": {"detail": "there is no such path"},
    "no-such-batch": {"detail": f"the tenant has no batch {BATCH}", "got": BATCH},
    "no-such-queue": {"detail": "the tenant has no queue basecall", "got": "basecall"},
    "no-such-fence": {"detail": "the tenant has no such fence", "got": FENCE},
    "no-such-login": {"detail": "the code is unknown, was used, or is too old"},
    "no-such-token": {"detail": "there is no token uploader to rotate"},
    "method-not-allowed": {
        "detail": "this path knows GET, PUT",
        "expected": "GET, PUT",
        "got": "DELETE",
    },
    "too-slow": {"detail": "expected the body within 15 s"},
    "conflict": {
        "detail": "'S-1' of queue basecall stands for another payload already; they differ at "
        "/pod5; send the same payload, or give this one a revision of its own",
        "diff": [{"op": "replace", "path": "/pod5", "value": "b.pod5", "was": "a.pod5"}],
    },
    "illegal-transition": {"detail": f"retry: batch {BATCH} is COMPLETED"},
    "queue-closed": {"detail": "queue basecall is closed; an operator opens it"},
    "not-in-doubt": {
        "detail": "the fence is SEALED, version 3; nothing was changed",
        "expected": "IN_DOUBT, version 2",
        "got": "SEALED, version 3",
        "state": "SEALED",
        "version": 3,
    },
    "name-taken": {"detail": "the tenant has had a token uploader"},
    "body-too-large": {
        "detail": "a body has at most 1048576 bytes",
        "expected": "at most 1048576 bytes",
        "got": "more",
    },
    "unsupported-media-type": {"detail": "the body is said not to be JSON", "got": "text/csv"},
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
        "detail": "a token may ask 500 times a second, 1000 at once",
        "expected": "at most 500 requests a second",
    },
    "queue-full": {
        "detail": "queue basecall has 100000 batches pending, and takes 100000",
        "expected": "at most 100000 pending",
        "got": "100001",
        "pending": 100_000,
        "limit": 100_000,
    },
    "too-many-streams": {
        "detail": "the tenant has 48 of the 64 streams that this process has, and one tenant has "
        "at most 3 times as many as it leaves free",
        "expected": "at most 48 of one tenant at this moment",
        "got": "49",
    },
    "check-under-way": {
        "detail": "the tenant has 1 of the 2 checks and replays that this process has, and one "
        "tenant has at most 3 times as many as it leaves free",
        "expected": "at most 1 of one tenant at this moment",
        "got": "2",
    },
    "head-too-large": {"detail": "a head has at most 32768 bytes"},
    "internal": {"detail": "it is on record under the request's id"},
    "unavailable": {"detail": "The database is away", "outcome_unknown": False},
    "retryable": {"detail": "Something else was in the way"},
    "too-busy": {
        "detail": "2000 requests are under way",
        "expected": "at most 2000 at a time",
        "got": "one more",
    },
    "not-ready": {"detail": "the database's schema does not fit this release; run helixq migrate"},
}
