"""Ledgers in Python: the replay that proves G4 (fold, hash chain), user ledgers, and feeds."""
