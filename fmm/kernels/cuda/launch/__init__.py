"""Play launch lists on a CUDA device.

Thread safety: each object that a call changes belongs to one thread. A call with cached kernels takes no lock.

A `StreamFlag` belongs to one thread and one stream, together with the flag's prepared calls and their `GraphCaptures`,
`UpdatableGraph`s and graph counters. After the thread has ended, the next thread on the same stream takes over the
flag. A `Player`'s parameter blocks, the pooled streams with their events and cuBLAS handles, and CuPy's handle belong
to one thread.

All threads use the caches of `cached_player`, `compile_kernel`, `record_launches` and `stream_counters`. An entry of a
cache never changes, and one atomic operation adds or drops the entry. All threads also use the `GraphCache`: one thread
may drop a graph from another thread's `GraphCaptures`.

An object stays alive while a call uses the object, even if the cache drops the object. A call holds a reference to its
graph until the launch is made. A launch holds a reference to its kernel's code. CuPy destroys a graph, or unloads a
kernel's code, when the last reference is deleted. If a destroyed graph is still running, CUDA frees the graph when the
run ends. CUDA forbids two threads to update, launch or destroy the same executable graph at once; no two threads of fmm
do so. Free-threaded Python is safe too: every access to a shared container is one atomic operation of a dict or deque.

Streams for graph captures are reused by later captures and never destroyed. The reason is a crash of CUDA's driver:
when a thread ends, CuPy waits for the device, and the driver may crash if another thread destroys a stream meanwhile.

A thread's first use of a `Player` makes the device's context current, because CUDA's driver needs a current context. A
new thread may have no current context, for example if it runs a graph of an ended thread before its own first call of
CUDA.
"""
