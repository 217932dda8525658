"""The exchange `star`: a node sends votes to the coordinator, and applies the updates that it merges."""
