"""Keeps the clock, merges what nodes send, seals it in a ledger, and sends the update to everybody."""
