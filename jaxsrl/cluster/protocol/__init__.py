"""Messages between nodes: the engine interface, setups, parameter versions, reservations."""
