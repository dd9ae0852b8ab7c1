"""Which policy acts for which agent."""
