"""The operations of the service, one module per family."""

from __future__ import annotations
