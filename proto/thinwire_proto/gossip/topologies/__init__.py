"""This project's topologies. Each module registers its own."""
