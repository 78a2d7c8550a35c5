"""Gossip, observed: who is seen to come and go becomes operations of the fleet's record."""
