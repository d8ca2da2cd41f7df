"""What the engine stores and answers, one class per record; plain frozen values."""

from __future__ import annotations
