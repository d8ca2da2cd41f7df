"""Webhooks: signature, duplicates and order of the deliveries of providers."""
