"""The revisions, numbered without gaps."""
