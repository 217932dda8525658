"""Terms: one life of the coordinator process each, and a promotion of a standby between them.

A promotion raises the term to the next multiple of PROMOTION_TERMS. The machine that was the coordinator before takes
one term more with each restart, so it stays below.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey, SecretKey

PROMOTION_TERMS = 1_000_000


def promotions(term: int) -> int:
    """The promotions up to a term. What was promoted later is the coordinator."""
    return term // PROMOTION_TERMS


def promoted_from(term: int) -> int:
    """The first term after a promotion of a standby that knows this term."""
    return (promotions(term) + 1) * PROMOTION_TERMS


@dataclass(frozen=True)
class ProvenTerm:
    """A term after a promotion. signature: by the coordinator's key, over the statement `term`. 0 without a signature:
    no promotion is known."""

    number: int = 0
    signature: bytes = b""

    def is_newer_than(self, term: int) -> bool:
        """Whether there was a promotion since this term."""
        return promotions(self.number) > promotions(term)

    def proves(self, key: PublicKey, contract: bytes) -> bool:
        """Whether the key has signed it for the run with this contract hash."""
        return key.verifies(self.signature, statements.term(contract, self.number))


NO_PROMOTION = ProvenTerm()


def prove_term(key: SecretKey, contract: bytes, number: int) -> ProvenTerm:
    """The proof of a term; NO_PROMOTION if there was none before it."""
    if not promotions(number):
        return NO_PROMOTION
    return ProvenTerm(number, key.sign(statements.term(contract, number)))
