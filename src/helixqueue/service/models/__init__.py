"""Pydantic models of request and response bodies. The OpenAPI document is made from them."""

from __future__ import annotations
