"""The local rules, one a file, each registered by the kind that a contract names. Importing this makes all known."""

from thinwire_node.training.rules import demo, local_adamw
from thinwire_node.training.rules.rule import Rule, make_rule, shapes_kept

__all__ = ["Rule", "demo", "local_adamw", "make_rule", "shapes_kept"]
