"""Training of several seeds at once: in one program where environments are on devices, elsewhere as processes."""
