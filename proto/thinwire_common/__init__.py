"""Code that the coordinator and the node share and that is not part of the protocol: logs, files, counters, HTTP."""
