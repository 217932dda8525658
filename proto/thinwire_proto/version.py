"""The version of thinwire. A test checks that `pyproject.toml` has the same version."""

VERSION = "0.3.0"
