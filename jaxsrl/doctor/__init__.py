"""`jaxsrl doctor`: whether this machine can do what jaxsrl needs, and what dead runs left on it."""
