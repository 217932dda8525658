"""The coordinator: times the rounds, merges contributions, seals updates in a ledger, and sends them to all nodes."""
