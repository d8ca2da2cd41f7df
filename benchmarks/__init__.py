"""Measurements against the budgets; `python -m benchmarks.engine` runs the engine's."""
