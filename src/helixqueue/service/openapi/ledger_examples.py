"""Examples of user ledgers and feeds."""

from __future__ import annotations

from typing import Any, Final

_KEY: Final = "v2:9b1f0f7c0f5a4f0d8f1b6f2f7c3d5e8a1b4c7d0e3f6a9b2c5d8e1f4a7b0c3d6e"
_POSITION: Final = "pC0qkA1cGm9Gv1iP4ykM3cZ2H0x9S5bT7wQd8JrUeXo"
_LATER: Final = "kW3sYb8Lq2Tn6Vd1Zx5Rj9Cf4Hg7Mp0Aa2Ss4Dd6Ff8"
_AT: Final = "2026-09-01T08:00:00Z"
_RULES: Final[dict[str, Any]] = {
    "arrows": {"REQUESTED": ["CONFIRMED", "CANCELLED"], "CONFIRMED": [], "CANCELLED": []},
    "initial": ["REQUESTED"],
    "strict": True,
    "bind_payload": False,
    "ignore": ["/trace_id"],
}
_LEDGER: Final = {
    "tenant": "lab",
    "name": "dispatch",
    **_RULES,
    "created_at": _AT,
    "created_by": "ann",
}
_EVENT: Final = {
    "entity": "drone-7",
    "seq": 2,
    "kind": "CONFIRMED",
    "payload": {"pad": "north"},
    "node": "alp-1",
}
_APPENDED: Final[dict[str, Any]] = {
    "decision": "written",
    "key": _KEY,
    "version": 2,
    "state": "CONFIRMED",
    "seq": 2,
    "rules": [],
    "diff": [],
}
_STORED: Final = {**_EVENT, "version": 2, "actor": "uploader", "at": _AT, "violations": []}
_FEED: Final[dict[str, Any]] = {
    "tenant": "lab",
    "name": "notify",
    "ledger": "dispatch",
    "queue": None,
    "paused": False,
    "delivered": 41,
    "lag": 1,
    "oldest_at": _AT,
    "moved_at": _AT,
    "holder": None,
}
_DELIVERED: Final = {
    "key": _KEY,
    **_EVENT,
    "actor": "uploader",
    "at": _AT,
    "violations": [],
    "position": _LATER,
    "after": _POSITION,
}
_REASON: Final = {"reason": "the pager was down"}

# Operation: response, request.
LEDGER_EXAMPLES: Final[dict[str, tuple[Any, Any]]] = {
    "list_ledgers": ({"rows": [_LEDGER], "next": None}, None),
    "show_ledger": (_LEDGER, None),
    "declare_ledger": (_LEDGER, _RULES),
    "append_event": (_APPENDED, _EVENT),
    "append_events": ({"appended": [_APPENDED]}, {"events": [_EVENT]}),
    "show_entity": (
        {
            "entity": "drone-7",
            "state": "CONFIRMED",
            "seq": 2,
            "events": 2,
            "hash": "6f5d2b7e3f6c1f5e5d0a5c1b9a510c5a6f5d2b7e3f6c1f5e5d0a5c1b9a510c5a",
            "changed_at": _AT,
        },
        None,
    ),
    "list_events": ({"rows": [{**_STORED, "key": _KEY}], "next": _POSITION}, None),
    "list_feeds": ({"rows": [_FEED], "next": None}, None),
    "show_feed": (_FEED, None),
    "declare_feed": (_FEED, {"ledger": "dispatch", "start": "beginning"}),
    "read_feed": ({"rows": [_DELIVERED], "next": None}, None),
    "confirm_feed": ({"moved": True}, {"after": _POSITION, "to": _LATER, "count": 1}),
    "pause_feed": ({**_FEED, "paused": True}, _REASON),
    "resume_feed": (_FEED, _REASON),
    "rewind_feed": (_FEED, {**_REASON, "since": _AT}),
}
LEDGER_PARAMETERS: Final[dict[str, Any]] = {
    "ledger": "dispatch",
    "entity": ["drone-7"],
    "feed": "notify",
}
