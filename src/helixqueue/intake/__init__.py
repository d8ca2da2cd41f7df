"""Redis Streams as a way in: entries of a consumer group become batches, each once."""

import logging

# An application that configures no logging gets no output.
logging.getLogger("helixqueue.intake").addHandler(logging.NullHandler())
