"""The pages: one module per page, named as the navigation names it."""
