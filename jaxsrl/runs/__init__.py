"""Reading what runs left: records, state, summary, inspection."""
