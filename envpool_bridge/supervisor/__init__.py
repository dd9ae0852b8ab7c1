"""Code in the main process that forks, watches and restarts workers."""
