"""gpufabric: multi-node GPU jobs on the fastest network a place has, and proof of it."""
