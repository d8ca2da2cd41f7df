"""Queues as a program declares them: names, settings, the shapes of payloads and results.

Pure. A declaration may stand at the top of a module; it meets a database when a client first uses
it. `declaration` has `Queue`, `shapes` turns Python types into JSON and back, `schema_bounds` has
the limits of JSON Schemas.
"""

from __future__ import annotations

from helixqueue.queues.declaration import Queue
from helixqueue.queues.requirements import checked_requires
from helixqueue.queues.shapes import Shape

__all__ = ["Queue", "Shape", "checked_requires"]
