"""Weights, tokenizers, prompts and generation: from text to tokens to text."""
