"""The link to the coordinator, over gRPC: joining, files, the clock, and the calls of all exchanges."""
