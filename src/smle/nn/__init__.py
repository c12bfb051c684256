"""Safe networks in torch: backbone, bounds, clip, heads, gate."""
