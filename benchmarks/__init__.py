"""What the sidecar costs beside the same work without its logic, measured in one run."""
