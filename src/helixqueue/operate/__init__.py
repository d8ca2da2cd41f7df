"""Commands of operators: check, seals, doctor, recovery after a restore, alerts, dashboard."""
