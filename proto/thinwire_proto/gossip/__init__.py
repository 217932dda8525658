"""The parts of training without a centre that all nodes hold alike: topologies, mixing weights, codecs, copies."""
