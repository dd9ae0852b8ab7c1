"""Actors: environment processes that hold a copy of the policy and act for their own rows, on the CPU."""
