"""Beyond one machine: environment hosts on the nodes of a cluster, whose bytes an existing engine carries."""
