"""The OpenAPI document, with an example for every operation and every problem."""

from __future__ import annotations
