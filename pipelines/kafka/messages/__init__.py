"""What a message holds: rows as JSON or Avro, what of them fits, and what the owner is told."""
