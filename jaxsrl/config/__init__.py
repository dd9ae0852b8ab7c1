"""The configuration dataclasses of the system, and their JSON form."""
