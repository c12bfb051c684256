"""The kernel's row operations in NumPy: as functions of columns (`operations`), or printed as Python (`source`)."""
