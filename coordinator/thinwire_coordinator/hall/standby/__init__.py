"""What a standby needs: its standing, what it is sent, and what it writes."""
