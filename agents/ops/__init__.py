"""Reinforcement-learning mathematics as pure functions: returns, V-trace, value distributions, exploration, moments."""
