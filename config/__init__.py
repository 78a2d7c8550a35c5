"""What is shown and alerted: rules written by hand, dashboards and Kubernetes twins generated."""
