// Complex numbers as they are in memory.
//
// The file includes no header, so NVRTC needs no include path.
#pragma once

namespace fmm {

template <class Real>
struct Complex {
    Real re, im;
};

}  // namespace fmm
