"""Topics with a schema registry: records are read by their writers' schemas, and published rows have one too."""
