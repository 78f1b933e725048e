"""From a call to its product: what it multiplies, which plan decides itself to be worth while, and running it.

matmul.py is the way of every product: calls/prepare.py makes a call ready (its matrices, and its plan by decisions/),
and running/ runs it, on the host or on a device.
"""
