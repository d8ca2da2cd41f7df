"""The log of every process: one format of lines, one place that masks secrets.

`lines` writes JSON lines. `requests` collects those of a request of the service, `events` those of
workers and submissions. `terminal` prints messages for people.
"""
