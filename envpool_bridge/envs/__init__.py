"""Environment sources: one file for each kind; all implement `envs.protocol`."""
