"""The command `helixq`: one module per verb, each with `register(app)`."""
