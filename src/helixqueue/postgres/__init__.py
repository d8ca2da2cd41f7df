"""Connections to PostgreSQL: pool, callers' transactions, error mapping."""

from __future__ import annotations
