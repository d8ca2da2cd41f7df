"""Examples of keys and seals."""

from __future__ import annotations

from typing import Any, Final

KEYS: Final[dict[str, Any]] = {
    "keys": [
        {
            "id": "21fe31dfa154a261",
            "algorithm": "Ed25519",
            "public": "8a" * 32,
            "created_at": "2026-09-01T08:00:00+00:00",
            "retired_at": None,
        }
    ]
}
SEAL: Final[dict[str, Any]] = {
    "format": "helixqueue seal 1",
    "number": 2,
    "previous": "5e" * 32,
    "sealed_at": "2026-09-01T08:00:00.000000Z",
    "release": "0.1.0",
    "database": "2026-08-01T08:00:00.000000Z",
    "timeline": "00000001",
    "from_position": "1099511628591",
    "to_position": "1099511628980",
    "last_entry": 4_096,
    "batch_numbers": 2_048,
    "counts": {"entry": 4_096},
    "schema": "6f" * 32,
    "pages": [],
    "signature": {"algorithm": "Ed25519", "key_id": "21fe31dfa154a261", "value": "MEQCIA=="},
}
SEAL_REQUEST: Final[dict[str, Any]] = {
    "after": {
        "number": 1,
        "id": "5e" * 32,
        "to_position": "1099511628591",
        "counts": {"entry": 2_048},
    }
}
