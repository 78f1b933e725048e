#include <algorithm>
#include <bit>
#include <cmath>
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
static unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
