"""What a policy may ask of any method: engines that take a method's place, and let it work on the rows they choose."""
