"""The command line: words in, lines out."""
