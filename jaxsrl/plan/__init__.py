"""An algorithm's run as data: fragments, the channels between them, and the plan that places both."""
