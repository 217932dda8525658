"""What both ends of a swarm must hold alike. No sockets, no clock, no environment."""
