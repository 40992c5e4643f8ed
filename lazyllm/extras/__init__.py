"""Built on top: shorter prompts for other engines, log-likelihoods, the evaluation harness."""
