"""The `jaxsrl` command."""
