#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#include <algorithm>
using std::abs;
using std::max;
using std::min;
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(x)
struct Dim { unsigned x, y, z; };
static thread_local Dim threadIdx;
static unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
