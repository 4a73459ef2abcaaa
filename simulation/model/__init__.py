"""The modelled world: a runner with bundles, state, timers and checkpoints; worker processes; a broker; clocks."""
