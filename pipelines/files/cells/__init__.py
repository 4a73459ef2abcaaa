"""What a cell of a file looks like: in Avro, in CSV, and where many cells are the same range."""
