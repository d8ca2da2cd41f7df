"""The only package that talks to PostgreSQL."""
