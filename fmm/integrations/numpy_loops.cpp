// Inner loops of numpy.matmul in front of NumPy's own, which pass most products on without calling Python.
//
// NumPy calls an inner loop for a stack of products of one type, mostly without holding Python's lock. The loop calls
// NumPy's own loop, unless the sides are long enough for a plan and the product was not declined a moment ago. Then it
// takes the lock and calls a function of Python. If that declines or raises, NumPy's own loop writes the product.
//
// Deciding takes a millisecond for new sizes. A product that is not far longer itself comes to Python when it recurs.

#include <time.h>

#include <atomic>
#include <cfenv>
#include <cstdint>

// Functions of Python's stable ABI, which this process exports: Python's headers are not needed.
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

// NumPy's inner loop of matmul: the addresses of A, B and C; the number of products and m, k, n; the bytes from one
// product to the next of A, B, C, then the bytes from row to row and from column to column of A, B, C.
using Loop = void (*)(char** addresses, const intptr_t* sizes, const intptr_t* steps, void* data);
constexpr int SIZES = 4, STEPS = 9;

// NumPy's PyUFunc_ReplaceLoopBySignature.
using ReplaceLoop = int (*)(void* ufunc, Loop loop, const int* signature, Loop* before);

constexpr int TYPES = 16;  // NumPy's type numbers from bool to complex128
constexpr int64_t NEVER = INT64_MAX;

std::atomic<Loop> own_loops[TYPES];           // NumPy's own
std::atomic<int64_t> least_sides[TYPES];      // with a shorter side, no plan pays
std::atomic<double> least_works[TYPES];       // multiply-adds from which new sizes are decided at once
std::atomic<bool> calls_always{false};        // call Python for new sizes, too, which counts the product
std::atomic<void*> python_function{nullptr};  // returns an Answer
std::atomic<unsigned long> main_thread{0};

enum Answer : long { DECLINED, WRITTEN, DECLINED_NOW };  // DECLINED_NOW is not remembered

// ---- declined a moment ago
//
// Two threads may write a slot at once; it then matches no product, or its decline ends a little too early or too late.

constexpr int SLOTS = 1024;
constexpr int64_t REMEMBERED = 1000000000;  // nanoseconds

struct Slot {
  std::atomic<uint64_t> product{0};
  std::atomic<int64_t> until{0};
};

Slot declined[SLOTS];
std::atomic<uint64_t> seen[SLOTS];  // hashes of products

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

uint64_t mixed(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
}

uint64_t hash_of(int type, char** addresses, const intptr_t* sizes, const intptr_t* steps) {
  uint64_t hash = mixed(type + 1, addresses[0] == addresses[1]);  // a matrix times its own transpose has other plans
  for (int i = 0; i < SIZES; ++i) hash = mixed(hash, sizes[i]);
  for (int i = 0; i < STEPS; ++i) hash = mixed(hash, steps[i]);
  return hash | 1;  // never 0, the value of an empty slot
}

Slot& slot_of(uint64_t product) { return declined[(product >> 16) % SLOTS]; }

bool was_declined(uint64_t product) {
  const Slot& slot = slot_of(product);
  return slot.product.load(std::memory_order_relaxed) == product && slot.until.load(std::memory_order_relaxed) > now();
}

void remember_declined(uint64_t product) {
  Slot& slot = slot_of(product);
  slot.until.store(now() + REMEMBERED, std::memory_order_relaxed);
  slot.product.store(product, std::memory_order_relaxed);
}

bool recurs(uint64_t product) {
  return seen[(product >> 16) % SLOTS].exchange(product, std::memory_order_relaxed) == product;
}

// ---- exceptions
//
// A loop cannot raise. So an exception that a signal handler raised meanwhile (Ctrl-C) is raised again as soon as Python
// runs the thread's next steps. NumPy's own product is one step of Python, too, and ends before any handler runs.

struct Raised {
  void *type, *value, *traceback;
};

int raise_again(void* argument) {
  Raised* raised = static_cast<Raised*>(argument);
  PyErr_Restore(raised->type, raised->value, raised->traceback);
  delete raised;
  return -1;
}

void raise_later() {
  Raised raised;
  PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
  const unsigned long thread = PyThread_get_thread_ident();
  if (thread == main_thread) {
    Raised* kept = new Raised(raised);
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

thread_local bool in_python = false;  // this thread's products are NumPy's own meanwhile

// Calls Python, whose own floating-point flags NumPy must not see.
Answer answer_of_python(int type, bool pays, char** addresses, const intptr_t* sizes, const intptr_t* steps) {
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

// A stack of products may have few rows each: together they have many.
bool is_large(int64_t least, const intptr_t* sizes) {
  return sizes[2] >= least && sizes[3] >= least && (sizes[1] >= least || sizes[0] > 1) && sizes[0] > 0;
}

template <int type>
void loop(char** addresses, const intptr_t* sizes, const intptr_t* steps, void* data) {
  if (is_large(least_sides[type].load(std::memory_order_relaxed), sizes) && !in_python) {
    const uint64_t product = hash_of(type, addresses, sizes, steps);
    if (!was_declined(product)) {
      const double work = static_cast<double>(sizes[0]) * sizes[1] * sizes[2] * sizes[3];
      const bool pays = recurs(product) || work >= least_works[type];
      if (pays || calls_always) {
        const Answer answer = answer_of_python(type, pays, addresses, sizes, steps);
        if (answer == WRITTEN) return;
        if (answer == DECLINED) remember_declined(product);
      }
    }
  }
  Loop own;
  while (!(own = own_loops[type])) {  // another thread is just installing this loop
  }
  own(addresses, sizes, steps, data);
}

const Loop loops[TYPES] = {loop<0>, loop<1>, loop<2>,  loop<3>,  loop<4>,  loop<5>,  loop<6>,  loop<7>,
                           loop<8>, loop<9>, loop<10>, loop<11>, loop<12>, loop<13>, loop<14>, loop<15>};

}  // namespace

extern "C" {

// Puts fmm's loop of a type into NumPy's function `ufunc`; nonzero if that has no loop of this type. Python's lock is
// held, but threads without it may enter the loop at once.
int fmm_replace(int type, ReplaceLoop replace, void* ufunc) {
  const int signature[3] = {type, type, type};
  Loop own = nullptr;
  const int failed = replace(ufunc, loops[type], signature, &own);
  if (!failed) own_loops[type] = own;
  return failed;
}

// Puts NumPy's loop back; nonzero if somebody else has put another in front of fmm's, which then stays and calls fmm's.
int fmm_restore(int type, ReplaceLoop replace, void* ufunc) {
  const int signature[3] = {type, type, type};
  Loop found = nullptr, ours = nullptr;
  replace(ufunc, own_loops[type], signature, &found);
  if (found == loops[type]) return 0;
  replace(ufunc, found, signature, &ours);
  return 1;
}

// Sets the shortest side with which Python is called for a type (0: never), and the multiply-adds from which it is called
// for the first product of some sizes, too.
void fmm_limits(int type, int64_t side, double work) {
  least_sides[type] = side > 0 ? side : NEVER;
  least_works[type] = work;
  for (Slot& slot : declined) slot.until = 0;
}

// Sets whether Python is called for the first product of some sizes, however small.
void fmm_call_always(int always) { calls_always = always; }

// Sets the function of Python that computes products, which must live as long as the process.
void fmm_python_function(void* function) { python_function = function; }

// Sets the thread in which Python runs signal handlers: after a fork, the only thread of the child.
void fmm_main_thread(unsigned long thread) { main_thread = thread; }
}
