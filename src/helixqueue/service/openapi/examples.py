"""Examples of the OpenAPI document, by operation: requests to a service and its responses.

`make examples` records them. A test sends each request to a real service and validates each
response against its schema.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

RECORDED: Final = Path(__file__).with_name("examples.json")
REQUEST: Final = "7f0c1d7e9a5b4f66"

# Members of problems besides the title and the defaults of problems.py.
PROBLEM_MEMBERS: Final[dict[str, dict[str, Any]]] = {
    "not-json": {
        "detail": "body at '/payload': expected each name once in an object; got it again. Keep "
        "one of the two",
        "code": "duplicate-name",
        "pointer": "/payload",
    },
    "conflict": {
        "detail": "'S-1' was submitted to queue basecall with another payload; they differ at "
        "/pod5; send the same payload, or use a new revision",
        "diff": [{"op": "replace", "path": "/pod5", "value": "b.pod5", "was": "a.pod5"}],
    },
    "not-in-doubt": {"state": "SEALED", "version": 3},
    "invalid-request": {
        "detail": "/body/priority: expected less than or equal to 9, got a number",
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
    "queue-full": {"pending": 100_000, "limit": 100_000},
    "unavailable": {"outcome_unknown": False},
}


@cache
def recorded() -> dict[str, Any]:
    """Of each operation: parameters, body of the request, and the response of each status."""
    examples: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return examples
