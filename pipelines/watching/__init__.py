"""Judges a published topic while it grows, by what its readers see and by what the run says of its releases."""
