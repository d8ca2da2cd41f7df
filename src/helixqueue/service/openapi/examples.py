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


@cache
def recorded() -> dict[str, Any]:
    """Of each operation: parameters, body of the request, and the response of each status."""
    examples: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return examples
