"""Demonstrations of exactly-once effect: `helixq demo` (`run`) and `helixq up --demo` (`live`).

Both submit sample sheets, kill and freeze workers, and prove that each sample took effect once.
"""
