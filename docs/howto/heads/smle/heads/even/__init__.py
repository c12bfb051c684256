"""Even whole numbers between constant limits."""
