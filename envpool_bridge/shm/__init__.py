"""The shared-memory segment: byte layout, slots, ring counters, doorbells, the board of workers, packed arrays."""
