"""Measurements of thinwire beside the best known ways."""

import os

# A node ranks below other programs by default, and other ways of training do not.
os.environ.setdefault("THINWIRE_NODE_PRIORITY", "normal")
