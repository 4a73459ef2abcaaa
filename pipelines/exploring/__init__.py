"""What `crenel explore` needs: a grid of guarantees, the engine run on each, targets, and a page with curves."""
