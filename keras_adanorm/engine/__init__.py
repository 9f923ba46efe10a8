"""How an update is run. What it computes stands in the files one folder above.

`ways.py` chooses the way of an update; each other way has a file, whose first lines say when it is
taken. All of them give the same numbers. `step.py` is what an algorithm sees, `norms.py` how a norm
is taken, `averages.py` how the averages of the norms are kept, and `private.py` holds every name
that Keras, TensorFlow and JAX don't promise to keep.
"""
