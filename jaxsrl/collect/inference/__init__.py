"""The batched inference server: reads observations where environments wrote them, writes actions beside them."""
