"""A node of several ranks: one identity, lease and contribution, of which each rank computes a share.

The leader is the daemon that any node is. `leader` has what its `Work` talks to in place of a trainer and a replica;
each job goes to all ranks, and `rank` is what every one of them, the leader too, does of it. `follower` is the loop of
the others.

Each rank takes its share of a micro-batch's samples. The momentum and its second moment are divided by ranges of tiles
(`thinwire.compression.tile_range`): a rank extracts, puts back and applies in its own range. If the model fits into
each rank (`WholeRank`), all hold it, and a rank sends the parameters of its range to the others. Otherwise
(`ShardedRank`) a rank holds those of its range alone, and `sharded_compute` brings a layer together while it runs.
"""
