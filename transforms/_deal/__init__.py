"""DEAL: learns a tree of shards from rows, and deals packs out to its leaves."""
