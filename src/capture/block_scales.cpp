#include "block_scales.hpp"

#include <fmt/format.h>

namespace pipewright::capture {
namespace {

constexpr std::int64_t tile_rows = 128, tile_blocks = 4, tile_bytes = tile_rows * tile_blocks;

constexpr std::int64_t pieces(std::int64_t whole, std::int64_t piece) { return (whole + piece - 1) / piece; }

std::int64_t tiles_along(const BlockScaling& scaling, std::int64_t k) {
  return pieces(pieces(k, scaling.elements), tile_blocks);
}

}  // namespace

std::optional<BlockScaling> block_scaling(std::string_view family) {
  if (!family.starts_with("gemm.") && !family.starts_with("quantize.")) return std::nullopt;
  if (family.find("mxfp8") != std::string_view::npos) return mxfp8;
  if (family.find("nvfp4") != std::string_view::npos) return nvfp4;
  return std::nullopt;
}

std::int64_t operand_bytes(const BlockScaling& scaling, std::int64_t rows, std::int64_t k) {
  return pieces(rows * k * scaling.bits, 8);
}

std::int64_t scale_bytes(const BlockScaling& scaling, std::int64_t rows, std::int64_t k) {
  return pieces(rows, tile_rows) * tiles_along(scaling, k) * tile_bytes;
}

std::int64_t scale_offset(const BlockScaling& scaling, std::int64_t k, std::int64_t row, std::int64_t block) {
  const auto tile = row / tile_rows * tiles_along(scaling, k) + block / tile_blocks;
  const auto inside = row % tile_rows;
  return tile * tile_bytes + inside % 32 * 16 + inside / 32 * 4 + block % tile_blocks;
}

bool takes(const BlockScaling& scaling, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::int64_t piece = 16 * 8 / scaling.bits;
  return m > 0 && n > 0 && k > 0 && k % scaling.elements == 0 && k % piece == 0 && m % 16 == 0 && n % 16 == 0;
}

std::optional<std::string> lacks(const profile::Device& gpu, std::string_view family) {
  constexpr int first = 100, after = 120;  // consumer chips from 12.0 on have other ones
  if (!block_scaling(family) || (gpu.compute_capability >= first && gpu.compute_capability < after))
    return std::nullopt;
  return fmt::format("this GPU has no block-scaled tensor cores ({} has compute capability {}, they came with 10.0)",
                     gpu.name, profile::capability_text(gpu.compute_capability));
}

}  // namespace pipewright::capture
