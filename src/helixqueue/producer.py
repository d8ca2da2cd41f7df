"""`Producer`: adds messages to a Redis stream that an intake reads."""

from helixqueue.intake.producer import Producer

__all__ = ["Producer"]
