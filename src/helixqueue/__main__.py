"""`python -m helixqueue`, the same as `helixq`."""

from helixqueue.cli.entry import main

main()
