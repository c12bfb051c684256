"""The kernel's row operations in NumPy: on columns (`numpy_operations`), or printed as Python (`source`)."""
