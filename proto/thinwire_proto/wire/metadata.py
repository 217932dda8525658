"""The keys of the gRPC metadata that both ends use."""

ORGANIZER = "thinwire-organizer"
"""With Status: the organizer's proof, for all that is known of each node."""
SESSION = "thinwire-session"
"""With each call after Join: the session's secret, as the reply to Join gave it."""
REASON = "thinwire-reason"
"""With a refusal: its reason in one word (`thinwire_coordinator.access.refusals`)."""
