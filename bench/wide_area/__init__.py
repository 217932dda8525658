"""`make bench-wan`: a swarm, and PyTorch's DistributedDataParallel beside it, over links like those between homes."""
