"""`helixq demo`: a lab's sheet, competing workers, a kill, a freeze, and the proof afterwards."""
