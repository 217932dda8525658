"""Everything that node and coordinator must share exactly. No sockets, no clock, no environment variables."""
