"""Rankings: `attention` (Eq. 1 and `lazyllm+`), which may rank in decoding, and `static`, which ranks in prefill."""
