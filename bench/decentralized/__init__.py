"""How much of the computing time `Gossip` keeps beside DistributedDataParallel and decent-dp, over emulated lines."""
