"""Plans a run of the star, whose coordinator merges votes in rounds."""
