"""What clients, service and CLI do, as steps without I/O."""

from __future__ import annotations
