"""The parts of training by gossip that all nodes hold alike: topologies, mixing weights, codecs, copies."""
