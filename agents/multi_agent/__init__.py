"""Algorithms for teams of agents. MAPPO and IPPO are `agents.ppo` with networks of their own."""
