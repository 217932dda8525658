"""Keys, the statements that they sign, and the invite: how coordinators and nodes prove who they are."""
