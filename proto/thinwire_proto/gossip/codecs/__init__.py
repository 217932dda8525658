"""This project's codecs of differences. Each module registers its own."""
