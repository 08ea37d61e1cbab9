"""The convergence theory: each bound term by term, as printed in the paper and as corrected (docs/theory.md)."""
