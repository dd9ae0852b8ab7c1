"""Code that runs inside an environment process."""
