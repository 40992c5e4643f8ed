"""Rankings: `attention` (Eq. 1 and `lazyllm+`), ranked in every step, and `static`, ranked once."""
