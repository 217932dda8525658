"""What nodes that train without a centre hold alike: the topology, the mixing weights and the codecs."""
