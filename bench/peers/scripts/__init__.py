"""What a user of each system writes: one script a system. They run in the systems' own environments, without thinwire's
programs."""
