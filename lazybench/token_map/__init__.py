"""A page that shows which tokens of a prompt reached which layers, and which came back for which generated token."""
