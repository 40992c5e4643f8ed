"""Tokenizers that models under test do not bring along, or not in a form that can be read."""
