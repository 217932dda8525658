"""What the coordinator and the node share and no protocol needs: logs, files, workers, counters, HTTP."""
