"""The templates: everything is escaped, and a misspelt name is an error instead of nothing."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from helixqueue.dashboard import formats
from helixqueue.dashboard.navigation import SECTIONS
from helixqueue.records.batch import JsonText, failure_text
from helixqueue.records.queue import BoundedCount

if TYPE_CHECKING:
    from datetime import timedelta

    from helixqueue.records.batch import BatchRow

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"
MAX_JSON_CHARS: Final = 32 * 1024  # of a payload on a page
# What a person reads for a word of the records.
WORDS: Final = {
    "IN_DOUBT": "In doubt",
    "json": "JSON",
    "EFFECT_STARTED": "Effect started",
    "not_ok": "Refused",
}


@cache
def environment() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    jinja.filters |= {
        "count": count,
        "rate": formats.rate,
        "duration": seconds,
        "age": formats.age,
        "exact": formats.exact,
        "machine_time": formats.machine_time,
        "day": formats.day,
        "short": formats.short_id,
        "word": word,
        "listed": formats.listed,
        "plural": formats.counted,
        "times": formats.times,
        "without_date": formats.without_date,
        "json_lines": json_lines,
        "identity": identity,
        "failure": failure,
        "first_line": first_line,
    }
    jinja.globals |= {"clock": formats.clock, "asset": asset, "url": url, "sections": SECTIONS}
    return jinja


def render(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever a template shows
    return environment().get_template(template).render(**values)


@cache
def asset(name: str) -> str:
    """The URL of a file in `static/`; it changes with the file, so browsers may keep it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()
    return f"/static/{name}?v={digest[:12]}"


def url(*parts: object) -> str:
    """`/queues/basecall`: the address of an object."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def count(value: BoundedCount | int) -> str:
    if isinstance(value, BoundedCount):
        return formats.number(value.number, more=value.more)
    return formats.number(value)


def seconds(value: float | timedelta) -> str:
    return formats.duration(value if isinstance(value, int | float) else value.total_seconds())


def word(text: str) -> str:
    """`Running`: a state or a reason in sentence case."""
    return WORDS.get(text, text.replace("_", " ").capitalize())


def identity(parts: tuple[str, ...] | str | None) -> str:
    """`PRJ-1 / S-7`: the parts of an identity."""
    if isinstance(parts, str):
        return parts
    return " / ".join(parts) if parts else ""


def failure(row: BatchRow) -> str:
    """`MemoryError: asked for 78 GB`: the class and the message of a failed batch."""
    return failure_text(row.failure, row.detail, between=": ") or "failed"


def first_line(text: str) -> str:
    """The reason of a failure; a traceback or the output of a program follows it."""
    return text.partition("\n")[0]


def json_lines(value: Any, indent: str = "") -> Markup:  # noqa: ANN401 - JSON
    """JSON with indentation; names, texts and numbers have classes of the stylesheet."""
    if isinstance(value, JsonText):
        if len(value) > MAX_JSON_CHARS:
            rest = f"... {len(value) - MAX_JSON_CHARS:,} more characters; the API has all of them"
            return Markup('{}<span class="muted">{}</span>').format(value[:MAX_JSON_CHARS], rest)
        value = json.loads(value)
    inner = f"{indent}  "
    if isinstance(value, dict) and value:
        rows = [
            Markup('{}<span class="name">{}</span>: {}').format(
                inner, json.dumps(name, ensure_ascii=False), json_lines(item, inner)
            )
            for name, item in value.items()
        ]
        return Markup("{{\n{}\n{}}}").format(Markup(",\n").join(rows), indent)
    if isinstance(value, list) and value:
        rows = [inner + json_lines(item, inner) for item in value]
        return Markup("[\n{}\n{}]").format(Markup(",\n").join(rows), indent)
    kind = "text" if isinstance(value, str) else "number"
    text = json.dumps(value, ensure_ascii=False)
    return Markup('<span class="{}">{}</span>').format(kind, text)
