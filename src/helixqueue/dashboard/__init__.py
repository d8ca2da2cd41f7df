"""The web dashboard: pages that the server renders from the operations of the service."""
