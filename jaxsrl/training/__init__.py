"""From a plan to threads and processes, and back to nothing."""
