"""What a plan would do on machines that are not there: a discrete-event simulation, fed with measured costs."""
