"""Actors: environment processes that act for their own rows with a copy of the policy, on the CPU."""
