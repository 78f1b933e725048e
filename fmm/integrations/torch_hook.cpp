// Kernels that replace torch's kernels of products, and pass most products on to torch's kernels without calling
// Python.
//
// For each operator, such as aten::mm, one kernel is registered at one dispatch key. The kernel calls the operator of
// the same name in the library fmm_hook if the product is large enough and was not declined within the last second.
// This operator is written in Python; it returns the product, or None to decline. Otherwise torch's kernel is called.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

// The smallest numbers of multiply-adds with which Python is called: for types of more than two bytes, for two-byte
// types with aligned rows, and for two-byte types with unaligned rows.
std::atomic<int64_t> least_work{0}, least_work_16_bit{0}, least_work_16_bit_unaligned{0};

int64_t now_in_milliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// Products that Python declined within the last second, by a hash of the operator and of all properties of A and B on
// which the decision depends. Properties of the result and of the addend are not in the hash: declines because of one of
// them are not remembered. If two threads write a slot at the same time, the slot matches no product, or its decline
// ends slightly too early or too late.
constexpr size_t SLOTS = 1024;
constexpr int64_t REMEMBERED_MILLISECONDS = 1000;  // time for which a decline is remembered

struct Slot {
  std::atomic<uint64_t> product{0};
  std::atomic<int64_t> until{0};
};

std::array<Slot, SLOTS> declined_products;

uint64_t mix_hash(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
}

uint64_t hash_of(uint64_t operator_number, const at::Tensor& a, const at::Tensor& b) {
  uint64_t hash = mix_hash(operator_number + 1, a.is_cuda() ? a.get_device() : -1);
  hash = mix_hash(hash, a.const_data_ptr() == b.const_data_ptr());  // plans of A A^T are not plans of A B
  for (const at::Tensor* x : {&a, &b}) {
    hash = mix_hash(hash, static_cast<int64_t>(x->scalar_type()) * 2 + x->is_conj());
    for (const int64_t size : x->sizes()) hash = mix_hash(hash, size);
    for (const int64_t stride : x->strides()) hash = mix_hash(hash, stride);
  }
  return hash | 1;  // not 0, because 0 marks an empty slot
}

bool was_declined(uint64_t product) {
  const Slot& slot = declined_products[(product >> 16) % SLOTS];
  return slot.product.load(std::memory_order_relaxed) == product &&
      slot.until.load(std::memory_order_relaxed) > now_in_milliseconds();
}

void remember_declined(uint64_t product) {
  Slot& slot = declined_products[(product >> 16) % SLOTS];
  slot.until.store(now_in_milliseconds() + REMEMBERED_MILLISECONDS, std::memory_order_relaxed);
  slot.product.store(product, std::memory_order_relaxed);
}

// True if Python declined the last product for a reason other than its sizes. Such a decline is not remembered.
thread_local bool declined_only_now = false;

bool is_large_enough(const at::Tensor& a, const at::Tensor& b) {
  const int64_t axes = a.dim();
  if (axes < 2 || b.dim() != axes || a.layout() != at::kStrided || b.layout() != at::kStrided) return false;
  const int64_t k = a.size(axes - 1), n = b.size(axes - 1), work = a.size(axes - 2) * k * n;
  if (a.element_size() != 2) return work >= least_work;
  return work >= ((k | n) % 8 ? least_work_16_bit_unaligned : least_work_16_bit);
}

// A handle of a kernel from the dispatcher; the kernel lives at least as long as the handle.
using Kernel = decltype(std::declval<const c10::OperatorHandle&>().getComputedKernelForDispatchKey(DispatchKey::CPU));

class Hook : public c10::OperatorKernel {
 public:
  Hook(const c10::OperatorHandle& op, const c10::OperatorHandle& python_op, DispatchKey key, uint64_t number,
       size_t first)
      : own_(op.getComputedKernelForDispatchKey(key)), python_op_(python_op), key_(key), number_(number),
        left_index_(first) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const size_t count = op.schema().arguments().size(), begin = stack->size() - count;
    const at::Tensor& a = (*stack)[begin + left_index_].toTensor();
    const at::Tensor& b = (*stack)[begin + left_index_ + 1].toTensor();
    if (is_large_enough(a, b)) {
      const uint64_t product = hash_of(number_, a, b);
      if (!was_declined(product)) {
        declined_only_now = false;
        if (compute_in_python(stack, begin)) return;
        if (!declined_only_now) remember_declined(product);
      }
    }
    own_.callBoxed(op, keys, stack);
  }

 private:
  // Calls Python. Returns true if Python returned the product; the product then replaces the arguments on the stack.
  bool compute_in_python(Stack* stack, size_t begin) const {
    Stack call(stack->begin() + static_cast<std::ptrdiff_t>(begin), stack->end());
    python_op_.redispatchBoxed(DispatchKeySet(key_), &call);
    if (call.back().isNone()) return false;
    stack->resize(begin);
    stack->push_back(std::move(call.back()));
    return true;
  }

  Kernel own_;
  c10::OperatorHandle python_op_;
  DispatchKey key_;
  uint64_t number_;
  size_t left_index_;
};

// Suppresses the dispatcher's warning that a kernel replaces another kernel.
class WarningSuppressor : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// All kernels that were ever registered. They are never freed, because a thread may still run a kernel that is removed.
std::vector<Kernel> ever_registered;

struct Registration {
  explicit Registration(DispatchKey key) : library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__) {}
  torch::Library library;
};

std::array<std::unique_ptr<Registration>, 2> installed;  // the registrations for the host (0) and for CUDA devices (1)
thread_local std::string failure;

}  // namespace

extern "C" {

const char* fmm_failure() { return failure.c_str(); }

// Python calls this function while it runs for a hook: the present decline must not be remembered.
void fmm_only_now() { declined_only_now = true; }

void fmm_least_work(int64_t work, int64_t work_16_bit, int64_t work_16_bit_unaligned) {
  least_work = work, least_work_16_bit = work_16_bit, least_work_16_bit_unaligned = work_16_bit_unaligned;
  for (Slot& slot : declined_products) slot.until = 0;
}

// Installs hooks for `operators`, names such as "mm.out"; the operators of fmm_hook have "_" in place of the dot.
// `first` holds the index of the left matrix among each operator's arguments. Returns 0 on success. Otherwise
// fmm_failure returns the error, and no hook is installed.
int fmm_install(int on_cuda, int count, const char** operators, const int* first) {
  try {
    const DispatchKey key = on_cuda ? DispatchKey::CUDA : DispatchKey::CPU;
    auto& dispatcher = c10::Dispatcher::singleton();
    WarningSuppressor quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    auto library = std::make_unique<Registration>(key);
    for (int i = 0; i < count; ++i) {
      const std::string full = operators[i];
      const size_t dot = full.find('.');
      const std::string name = full.substr(0, dot), overload = dot == std::string::npos ? "" : full.substr(dot + 1);
      const auto op = dispatcher.findSchemaOrThrow(("aten::" + name).c_str(), overload.c_str());
      const std::string own = "fmm_hook::" + name + (overload.empty() ? "" : "_" + overload);
      const auto python_op = dispatcher.findSchemaOrThrow(own.c_str(), "");
      auto hook = std::make_unique<Hook>(op, python_op, key, static_cast<uint64_t>(i), static_cast<size_t>(first[i]));
      library->library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(hook)));
      ever_registered.push_back(op.getComputedKernelForDispatchKey(key));
    }
    installed[on_cuda] = std::move(library);
    return 0;
  } catch (const std::exception& error) {
    failure = error.what();
    return 1;
  }
}

void fmm_uninstall(int on_cuda) { installed[on_cuda].reset(); }
}
