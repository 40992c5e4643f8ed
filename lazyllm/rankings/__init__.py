"""Rankings beside the paper's: `plus` (parts beyond Eq. 1, `lazyllm+`) and `static` (chosen once, for good)."""
