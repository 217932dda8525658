"""Groups hosts into clusters, and places them on a topology."""
