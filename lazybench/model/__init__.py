"""Text to tokens to text: weights, tokenizers, prompts and generation."""
