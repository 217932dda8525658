"""The local rules. Each is a module that registers itself by its kind in the contract."""

from thinwire_node.star.rules.rule import Rule, make_rule, shapes_kept

__all__ = ["Rule", "make_rule", "shapes_kept"]
