"""The scripts that users of each system write, one a system. They run in the systems' own environments, without
thinwire's programs."""
