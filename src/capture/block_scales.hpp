// Operands whose scales stand for blocks of elements along k, as cuBLASLt's tensor-core products of Blackwell take them
// (cuBLAS documentation, "1D Block Scaling Factors Layout"; Transformer Engine pads and orders its scales alike).
// Scales have one byte each, in tiles of 128 rows x 4 blocks, tiles of a strip of rows one behind the other; inside a
// tile
//
//   offset = (row % 32) * 16 + (row / 32) * 4 + block
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "pipewright/profile.hpp"

namespace pipewright::capture {

struct BlockScaling {
  std::int64_t elements;  ///< that share a scale
  std::int64_t bits;      ///< of an element
  std::uint8_t one;       ///< the byte of scale 1
};
inline constexpr BlockScaling mxfp8{32, 8, 127};   ///< e4m3 with E8M0 scales
inline constexpr BlockScaling nvfp4{16, 4, 0x38};  ///< e2m1 with UE4M3 scales

/// Of a kernel family of matrix products ("gemm.mxfp8.tn", "gemm.grouped.nvfp4.tn.acc_f32") or casts
/// ("quantize.mxfp8").
std::optional<BlockScaling> block_scaling(std::string_view family);

/// Of an operand of `rows` x k elements.
std::int64_t operand_bytes(const BlockScaling& scaling, std::int64_t rows, std::int64_t k);
std::int64_t scale_bytes(const BlockScaling& scaling, std::int64_t rows, std::int64_t k);  ///< whole tiles
/// Where the scale of a block of k of a row is.
std::int64_t scale_offset(const BlockScaling& scaling, std::int64_t k, std::int64_t row, std::int64_t block);
/// cuBLASLt takes operands whose rows are whole 16-byte pieces and k whole blocks.
bool takes(const BlockScaling& scaling, std::int64_t m, std::int64_t n, std::int64_t k);

/// Why this GPU cannot run kernels of the family at all; nothing if it can.
std::optional<std::string> lacks(const profile::Device& gpu, std::string_view family);

}  // namespace pipewright::capture
