"""HelixQueue: every piece of work takes effect once, and you can prove it."""

from __future__ import annotations

__version__ = "0.1.0"
