"""The pool of examples, samplers of candidates, and nearest-neighbour search in large pools."""
