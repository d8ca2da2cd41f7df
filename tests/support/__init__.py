"""What several test modules use: databases, workers, faults, models."""
