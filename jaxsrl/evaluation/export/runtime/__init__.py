"""Source files that are copied into exported policies. They import no package of this repository."""
