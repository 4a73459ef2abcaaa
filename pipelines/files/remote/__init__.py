"""Files that are not on this machine."""
