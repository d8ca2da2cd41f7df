"""What clients, service and CLI do, as instructions without I/O."""

from __future__ import annotations
