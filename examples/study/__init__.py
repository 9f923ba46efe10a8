"""The runs of the paper's tables and of the desk study: carried out, analysed, reported."""
