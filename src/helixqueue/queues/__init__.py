"""Queues as a program declares them: names, settings, the shapes of payloads and results.

Pure. A declaration may stand at the top of a module; it meets a database when a client first uses
it. `declaration` has `Queue`, `shapes` turns Python types into JSON and back, `schemas` checks JSON
against a stored JSON Schema.
"""

from __future__ import annotations

from helixqueue.queues.declaration import Queue
from helixqueue.queues.requirements import checked_requires
from helixqueue.queues.schemas import Schema
from helixqueue.queues.shapes import Shape

__all__ = ["Queue", "Schema", "Shape", "checked_requires"]
