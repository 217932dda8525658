"""The local rules, one a file, each registered by the kind that a contract names."""

from thinwire_node.training.rules.rule import Rule, make_rule, shapes_kept

__all__ = ["Rule", "make_rule", "shapes_kept"]
