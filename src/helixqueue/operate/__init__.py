"""What people who run HelixQueue do: check its invariants, recover after a restore."""
