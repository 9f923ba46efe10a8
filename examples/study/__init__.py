"""The runs of the paper's tables and of the studies: carried out, analysed, reported."""
