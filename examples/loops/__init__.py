"""Training loops of one's own, one short program each."""
