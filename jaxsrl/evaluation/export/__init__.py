"""Export of policies: directories that act without jaxsrl."""
