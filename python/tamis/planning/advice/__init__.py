"""Which filter: every family's answer to one situation, in the order of what it costs."""
