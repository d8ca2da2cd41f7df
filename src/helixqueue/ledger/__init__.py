"""The ledger read back: its hash chain, its fold, and the replay that proves G4."""
