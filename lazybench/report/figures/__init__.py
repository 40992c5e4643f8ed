"""Figures for papers, and the look that they share."""
