"""`make swarm`: a coordinator and some nodes on this machine, as processes of their own, watched from outside."""
