"""The running sidecar: the line of loops, what it shows of itself, and where."""
