"""Records requests and responses of a running service as the examples of the OpenAPI document."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from tests.support.service import DOCUMENT

if TYPE_CHECKING:
    import httpx

_ENTRIES: Final = {
    entry["operationId"]: (method, path, entry)
    for path, methods in DOCUMENT["paths"].items()
    for method, entry in methods.items()
}
_ROWS_MAX: Final = 4  # of a list of objects in a response
_BLOCKS_MAX: Final = 3  # of a stream, and lines of metrics
_STARTED, _ENDED, _LATER = (f"2026-09-01T08:{minute}" for minute in ("00:00", "31:40", "33:02"))
# The times of members; the others have the first.
_TIMES: Final = {
    **dict.fromkeys(
        ("finished_at", "ended_at", "changed_at", "last_seen", "now", "newest"), _ENDED
    ),
    **dict.fromkeys(("deadline", "expires_at", "until", "answer_until", "last_at", "end"), _LATER),
}
# Members whose number depends on the speed of the machine, or on when a minute ends.
_MEASURED: Final = {
    "submitted": 27, "repeated": 2, "completed": 23, "failed": 1, "cancelled": 0, "lost": 1,
    "refused": 1, "completed_today": 640, "pending": 9, "total": 212, "seconds": 1,
    "wait_p50": 0.8, "wait_p95": 21.0, "run_p50": 200.1, "run_p95": 875.4, "age_seconds": 1.4,
    "lag_seconds": 0.3, "oldest_seconds": 21.4,
    "from_position": "1099511628591", "to_position": "1099511628980",
    "manifest": "0d6c6f0e-8f0a-4d3b-9f6e-2f1f5d0c7a11",
}  # fmt: skip
_UNSTEADY: Final = {"wait_p50", "wait_p95", "run_p50", "run_p95"}  # null without batches
_DRAWN: Final = 2**40  # numbers of leases are drawn at random, and are larger
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d(:\d\d)?)")
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Secrets, and what contains or hashes times: seals, signatures, digests, wake-up marks. Keys
# (`v1:`) and ids of batches follow from what the scenarios send.
_OPAQUE: Final = re.compile(
    rf"(?<![\w:+/-])(?!{_UUID})([0-9a-f]{{8}}\.[0-9a-f]{{16}}|[\w+/-]{{32,}}={{0,2}})(?![\w+/-])"
    r"|(?<=r2:)[0-9a-f]{64}"
)


class Recorder:
    """Sends requests by the name of their operation; keeps the first response of each status."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._recorded: dict[str, dict[str, Any]] = {}

    def send(self, name: str, /, **values: Any) -> httpx.Response:
        """Values are parameters, else members of the body; the schema's examples fill the rest."""
        response, _, _ = self._send(name, values)
        return response

    def __call__(self, name: str, /, **values: Any) -> Any:
        response, parameters, body = self._send(name, values)
        content = _content(response)
        entry = self._recorded.setdefault(name, {"parameters": {}, "responses": {}})
        entry["parameters"] = parameters | entry["parameters"]
        if body is not None:
            entry.setdefault("request", body)
        entry["responses"].setdefault(str(response.status_code), content)
        return content

    def _send(self, name: str, values: dict[str, Any]) -> tuple[httpx.Response, Any, Any]:
        method, path, entry = _ENTRIES[name]
        sent: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}}
        for parameter in entry.get("parameters", []):
            key = parameter["name"].lower().replace("-", "_")
            if key in values:
                sent[parameter["in"]][parameter["name"]] = values.pop(key)
            elif parameter["in"] == "path":
                sent["path"][parameter["name"]] = _example(parameter["schema"])
        content, headers = values.pop("content", None), values.pop("headers", {})
        body = _body(entry, values)
        response = self._client.request(
            method, path.format(**sent["path"]), params=sent["query"], json=body, content=content,
            headers=sent["header"] | headers,
        )  # fmt: skip
        assert response.is_success, f"{name}: {response.text}"
        return response, {k: v for place in sent.values() for k, v in place.items()}, body

    def examples(self) -> dict[str, Any]:
        """What was recorded, by operation, with stable values in place of times and secrets."""
        names: dict[str, str] = {}
        return {name: _stable(self._recorded[name], "", names) for name in sorted(self._recorded)}


def _content(response: httpx.Response) -> Any:
    kind = response.headers.get("content-type", "")
    if kind.startswith("application/json"):
        return response.json()
    end = "\n\n" if kind.startswith("text/event-stream") else "\n"
    blocks = response.text.split(end)[:_BLOCKS_MAX]
    return "".join(block + end for block in blocks if block) if response.content else None


def _body(entry: dict[str, Any], values: dict[str, Any]) -> dict[str, Any] | None:
    if "requestBody" not in entry:
        assert not values, f"{entry['operationId']} has no {list(values)}"
        return None
    schema = _resolved(entry["requestBody"]["content"]["application/json"]["schema"])
    required = {
        member: _example(schema["properties"][member])
        for member in schema.get("required", [])
        if member not in values
    }
    return required | values


def _example(schema: dict[str, Any]) -> Any:
    parts = [schema, *schema.get("anyOf", [])]
    return next(part["examples"][0] for part in parts if "examples" in part)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    [part] = schema.get("anyOf", [schema])[:1]
    if "$ref" in part:
        found: dict[str, Any] = DOCUMENT["components"]["schemas"][part["$ref"].rpartition("/")[2]]
        return found
    return part


def _stable(value: Any, member: str, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _stable(part, key, names) for key, part in value.items()}
    if isinstance(value, list):
        # Rows, not texts such as placeholders.
        few = value[:_ROWS_MAX] if any(isinstance(part, dict) for part in value) else value
        return [_stable(part, member, names) for part in few]
    if member in _MEASURED and (member in _UNSTEADY or not isinstance(value, bool | None)):
        return _MEASURED[member]
    if member == "marks":  # of a seal: base64 of any length
        return "gBc="
    if isinstance(value, str):
        value = _TIME.sub(lambda _: _TIMES.get(member, _STARTED) + "Z", value)
        return _OPAQUE.sub(lambda found: _named(found[0], names), value)
    return 7 if isinstance(value, int) and value > _DRAWN else value


def _named(text: str, names: dict[str, str]) -> str:
    """The same stable text for the same text, of its form."""
    digest = hashlib.sha512(str(len(names)).encode())
    if re.fullmatch(r"[0-9a-f]{64}|[0-9a-f.]{25}", text):
        digits = iter(digest.hexdigest())
        new = re.sub(r"[0-9a-f]", lambda _: next(digits), text)
    else:
        prefix = text[:3] if text.startswith(("hx_", "hl_")) else ""
        letters = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
        new = prefix + letters[: 43 if len(text) < 80 else 86]
    return names.setdefault(text, new)
