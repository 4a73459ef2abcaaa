"""A simulator: Pack, Hold, Durable and the Kafka source and sink run over a modelled runner, broker and disk.

One seed is one history: rows, and a list of steps such as "read a bundle, and fail at its seventh move" or "complete
the checkpoint, and tell nobody". A judge that shares no code with the steps checks all promises after every bundle. A
history that breaks one is shrunk and printed as a test. `docs/reliability.md` explains what is modelled.

For maintainers: it is not installed. `make simulate SEEDS=10000` runs it.
"""
