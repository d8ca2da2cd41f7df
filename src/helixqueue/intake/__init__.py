"""Redis Streams as a way in: entries of a consumer group become batches, each once."""

import logging

from helixqueue.log.lines import JsonFormatter

# An application that configures no logging gets no output.
logging.getLogger("helixqueue.intake").addHandler(logging.NullHandler())


def log_to(handler: logging.Handler, *, as_json: bool = False) -> None:
    """Log with times, as a process of its own."""
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else text)
    logger = logging.getLogger("helixqueue")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
