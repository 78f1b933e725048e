// Inner loops that replace those of numpy.matmul and pass most products on to NumPy's loops without calling Python.
//
// NumPy calls an inner loop for a stack of products of one type, mostly without holding Python's global lock. The loop
// calls a Python function if the matrices are large enough for a plan and Python did not decline the product within the
// last second. Otherwise, or if Python declines or raises an exception, NumPy's loop computes the product.
//
// Python's decision for new sizes takes a millisecond. So a short product calls Python only when its sizes recur.

#include <time.h>

#include <atomic>
#include <cfenv>
#include <cstdint>

// Functions of Python's stable ABI. They are declared here so that compilation needs no Python headers.
extern "C" {
int Py_IsInitialized(void);
int PyGILState_Ensure(void);
void PyGILState_Release(int state);
void* PyObject_CallFunction(void* function, const char* format, ...);
long PyLong_AsLong(void* number);
void Py_DecRef(void* object);
void PyErr_Clear(void);
void PyErr_Fetch(void** type, void** value, void** traceback);
void PyErr_Restore(void* type, void* value, void* traceback);
int Py_AddPendingCall(int (*function)(void*), void* argument);
unsigned long PyThread_get_thread_ident(void);
int PyThreadState_SetAsyncExc(unsigned long thread, void* type);
}

namespace {

// An inner loop of numpy.matmul. `addresses`: A, B and C. `sizes`: the number of products, then m, k and n. `steps`, in
// bytes: from product to product for A, B and C, then from row to row and from column to column for each of them.
using Loop = void (*)(char** addresses, const intptr_t* sizes, const intptr_t* steps, void* data);
constexpr int SIZES = 4, STEPS = 9;

// The type of NumPy's function PyUFunc_ReplaceLoopBySignature.
using ReplaceLoop = int (*)(void* ufunc, Loop loop, const int* signature, Loop* before);

constexpr int TYPES = 16;  // NumPy's type numbers from bool to complex128
constexpr int64_t NEVER = INT64_MAX;

std::atomic<Loop> numpy_loops[TYPES];         // NumPy's loops, by type
std::atomic<int64_t> smallest_sides[TYPES];   // the shortest side with which Python is called, by type
std::atomic<double> smallest_works[TYPES];    // multiply-adds from which new sizes call Python at once, by type
std::atomic<bool> calls_always{false};        // true if all new sizes call Python, which counts the products
std::atomic<void*> python_function{nullptr};  // the Python function, which returns an Answer
std::atomic<unsigned long> main_thread{0};    // the thread in which Python runs signal handlers

enum Answer : long { DECLINED, WRITTEN, DECLINED_NOW };  // DECLINED_NOW: declined for a reason that may soon change

// ---- products that Python declined within the last second
//
// If two threads write a slot at the same time, the slot matches no product, or its decline ends slightly too early or
// too late. Both are harmless.

constexpr int SLOTS = 1024;
constexpr int64_t REMEMBERED_NANOSECONDS = 1000000000;  // time for which a decline is remembered

struct Slot {
  std::atomic<uint64_t> product{0};
  std::atomic<int64_t> until{0};
};

Slot declined_products[SLOTS];
std::atomic<uint64_t> recent_products[SLOTS];  // hashes of recent products

int64_t now_in_nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

uint64_t mix_hash(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
}

uint64_t hash_of(int type, char** addresses, const intptr_t* sizes, const intptr_t* steps) {
  uint64_t hash = mix_hash(type + 1, addresses[0] == addresses[1]);  // A A^T has other plans than A B
  for (int i = 0; i < SIZES; ++i) hash = mix_hash(hash, sizes[i]);
  for (int i = 0; i < STEPS; ++i) hash = mix_hash(hash, steps[i]);
  return hash | 1;  // not 0, because 0 marks an empty slot
}

Slot& slot_of(uint64_t product) { return declined_products[(product >> 16) % SLOTS]; }

bool was_declined(uint64_t product) {
  const Slot& slot = slot_of(product);
  return slot.product.load(std::memory_order_relaxed) == product &&
      slot.until.load(std::memory_order_relaxed) > now_in_nanoseconds();
}

void remember_declined(uint64_t product) {
  Slot& slot = slot_of(product);
  slot.until.store(now_in_nanoseconds() + REMEMBERED_NANOSECONDS, std::memory_order_relaxed);
  slot.product.store(product, std::memory_order_relaxed);
}

bool was_seen_before(uint64_t product) {
  return recent_products[(product >> 16) % SLOTS].exchange(product, std::memory_order_relaxed) == product;
}

// ---- exceptions
//
// An inner loop cannot raise Python exceptions. If a signal handler raises an exception during the Python function
// (Ctrl-C), the exception is raised again as soon as the thread executes its next bytecode. NumPy's matmul is one
// bytecode too, and ends before any signal handler runs.

struct PythonException {
  void *type, *value, *traceback;
};

int raise_again(void* argument) {
  PythonException* raised = static_cast<PythonException*>(argument);
  PyErr_Restore(raised->type, raised->value, raised->traceback);
  delete raised;
  return -1;
}

void raise_later() {
  PythonException raised;
  PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
  const unsigned long thread = PyThread_get_thread_ident();
  if (thread == main_thread) {
    PythonException* kept = new PythonException(raised);
    if (Py_AddPendingCall(raise_again, kept) == 0) return;
    delete kept;
  } else {
    PyThreadState_SetAsyncExc(thread, raised.type);
  }
  Py_DecRef(raised.type);
  Py_DecRef(raised.value);
  Py_DecRef(raised.traceback);
}

// ---- the loops

thread_local bool in_python = false;  // true during the Python function: this thread's products use NumPy's loops

// Calls the Python function and returns its answer. Floating-point flags are restored, because NumPy reports them.
Answer call_python(int type, bool pays, char** addresses, const intptr_t* sizes, const intptr_t* steps) {
  void* function = python_function;
  if (!function || !Py_IsInitialized()) return DECLINED_NOW;
  std::fexcept_t flags;
  std::fegetexceptflag(&flags, FE_ALL_EXCEPT);
  in_python = true;
  const int state = PyGILState_Ensure();
  void* result = PyObject_CallFunction(
      function, "ii(nnn)(nnnn)(nnnnnnnnn)", type, static_cast<int>(pays), reinterpret_cast<intptr_t>(addresses[0]),
      reinterpret_cast<intptr_t>(addresses[1]), reinterpret_cast<intptr_t>(addresses[2]), sizes[0], sizes[1], sizes[2],
      sizes[3], steps[0], steps[1], steps[2], steps[3], steps[4], steps[5], steps[6], steps[7], steps[8]);
  long answer = DECLINED_NOW;
  if (result) {
    answer = PyLong_AsLong(result);
    Py_DecRef(result);
    if (answer < 0) PyErr_Clear();
  } else {
    raise_later();
  }
  PyGILState_Release(state);
  in_python = false;
  std::feclearexcept(FE_ALL_EXCEPT);
  std::fesetexceptflag(&flags, FE_ALL_EXCEPT);
  return static_cast<Answer>(answer);
}

// Returns true if the products are large enough for Python. Products of a stack may have few rows each.
bool is_large(int64_t least, const intptr_t* sizes) {
  return sizes[2] >= least && sizes[3] >= least && (sizes[1] >= least || sizes[0] > 1) && sizes[0] > 0;
}

template <int type>
void matmul_loop(char** addresses, const intptr_t* sizes, const intptr_t* steps, void* data) {
  if (is_large(smallest_sides[type].load(std::memory_order_relaxed), sizes) && !in_python) {
    const uint64_t product = hash_of(type, addresses, sizes, steps);
    if (!was_declined(product)) {
      const double work = static_cast<double>(sizes[0]) * sizes[1] * sizes[2] * sizes[3];
      const bool pays = was_seen_before(product) || work >= smallest_works[type];
      if (pays || calls_always) {
        const Answer answer = call_python(type, pays, addresses, sizes, steps);
        if (answer == WRITTEN) return;
        if (answer == DECLINED) remember_declined(product);
      }
    }
  }
  Loop own;
  while (!(own = numpy_loops[type])) {  // wait while another thread installs this loop
  }
  own(addresses, sizes, steps, data);
}

const Loop fmm_loops[TYPES] = {matmul_loop<0>, matmul_loop<1>, matmul_loop<2>, matmul_loop<3>,
                               matmul_loop<4>, matmul_loop<5>, matmul_loop<6>, matmul_loop<7>,
                               matmul_loop<8>, matmul_loop<9>, matmul_loop<10>, matmul_loop<11>,
                               matmul_loop<12>, matmul_loop<13>, matmul_loop<14>, matmul_loop<15>};

}  // namespace

extern "C" {

// Installs fmm's loop of a type in NumPy's function `ufunc`. Returns nonzero if `ufunc` has no loop of this type. The
// caller holds Python's global lock, but threads without the lock can enter the loop immediately.
int fmm_replace(int type, ReplaceLoop replace, void* ufunc) {
  const int signature[3] = {type, type, type};
  Loop own = nullptr;
  const int failed = replace(ufunc, fmm_loops[type], signature, &own);
  if (!failed) numpy_loops[type] = own;
  return failed;
}

// Restores NumPy's loop. Returns nonzero if another library has replaced fmm's loop: then that loop remains installed.
int fmm_restore(int type, ReplaceLoop replace, void* ufunc) {
  const int signature[3] = {type, type, type};
  Loop found = nullptr, ours = nullptr;
  replace(ufunc, numpy_loops[type], signature, &found);
  if (found == fmm_loops[type]) return 0;
  replace(ufunc, found, signature, &ours);
  return 1;
}

// Sets the shortest side with which a type calls Python (0: never), and the multiply-adds from which new sizes call
// Python at their first product.
void fmm_limits(int type, int64_t side, double work) {
  smallest_sides[type] = side > 0 ? side : NEVER;
  smallest_works[type] = work;
  for (Slot& slot : declined_products) slot.until = 0;
}

// Sets whether new sizes always call Python at their first product.
void fmm_call_always(int always) { calls_always = always; }

// Sets the Python function that computes products. The function must never be freed.
void fmm_python_function(void* function) { python_function = function; }

// Sets the thread in which Python runs signal handlers. After a fork, this is the only thread of the child.
void fmm_main_thread(unsigned long thread) { main_thread = thread; }
}
