"""`make swarm`: runs a coordinator and some nodes as processes on this machine, and watches them from outside."""
