"""What is served to Prometheus over HTTP: figures of a run, and of a published topic that is watched."""
