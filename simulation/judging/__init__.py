"""The judge of a history. It shares no code with the steps that it judges."""
