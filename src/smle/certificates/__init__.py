"""The proof: certificate format, exact checker, issuing."""
