"""Launch lists played on a CUDA device.

Threads: whatever a call changes belongs to one thread at a time, so that no warm call takes a lock.

- One thread and stream: `StreamFlag`, its prepared calls with their `GraphCaptures`, `MovableGraph`s and graph
counters. The flags of a thread that ended pass to the next thread on the same stream.
- One thread: a `Player`'s parameter blocks, the pooled streams with their events and cuBLAS handles, CuPy's handle.
- All threads: `player_of`, `compile_kernel`, `record_launches` and `stream_counters`. Entries of these caches are added
and dropped as a whole, and never change. Also the `GraphCache`, where one thread drops a graph from another thread's
  `GraphCaptures`.

An object that is dropped from a cache stays alive while a call uses it. A call holds its graph until the launch is
made, a launch holds the code of its kernel, and CuPy destroys a graph or unloads code with the last reference. If a
destroyed graph is still running, CUDA frees it after its end. Therefore no two threads update, launch or destroy one
executable graph at a time, which CUDA leaves undefined. All of this holds in free-threaded Python too: each step on a
shared container is one atomic operation of a dict or deque.

Streams of captures pass from capture to capture and are never destroyed: a thread that ends waits for the device, and
CUDA's driver may crash if another thread destroys a stream meanwhile.

A thread's first use of a `Player` makes the device's context current: CUDA's driver needs one, and a thread that takes
over another's graphs may not have called CUDA before.
"""
