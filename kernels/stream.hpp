// The stream type of every launcher in this folder, without the CUDA headers.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace pipewright::kernels {
using Stream = CUstream_st*;
}  // namespace pipewright::kernels
