"""`jaxsrl doctor`: checks of the machine and the installation, and leftovers of crashed runs."""
