"""Torsos and heads as flax modules; `actor_critic` joins them by configuration."""
