"""Runs: many batches from one file.

`spec` reads the file, `expansion` makes datums of listings (pure), `spool` lists the inputs and
keeps the datums in a file until they are submitted; `fetch` and `secret_file` serve workers.
"""
