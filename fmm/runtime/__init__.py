"""From a call to its product: what it multiplies, which plan decides itself to be worth while, and running it.

call.py is the way of every product: prepare.py makes a call ready (operands.py: its matrices; decide.py: its plan), and
host_run.py or device_run.py runs it.
"""
