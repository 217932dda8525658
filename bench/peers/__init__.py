"""`make bench-peers`: other systems in their own code, and thinwire beside them, on the same work over slow links."""
