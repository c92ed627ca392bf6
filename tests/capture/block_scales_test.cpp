// Scales along k as cuBLASLt wants them, and which GPU has products of them: what can be tested without such a GPU.
#include "block_scales.hpp"

#include <doctest/doctest.h>

#include <set>

#include "grid.hpp"

namespace block_scales_test {

using namespace pipewright;
using namespace pipewright::capture;

TEST_CASE("the first scales of a tile stand where cuBLAS's documentation draws them") {
  CHECK(scale_offset(mxfp8, 256, 0, 0) == 0);
  CHECK(scale_offset(mxfp8, 256, 0, 3) == 3);
  CHECK(scale_offset(mxfp8, 256, 32, 0) == 4);  // rows 32, 64, 96 follow row 0 within 16 bytes
  CHECK(scale_offset(mxfp8, 256, 96, 3) == 15);
  CHECK(scale_offset(mxfp8, 256, 1, 0) == 16);
  CHECK(scale_offset(mxfp8, 256, 127, 3) == 511);
  CHECK(scale_offset(mxfp8, 256, 0, 4) == 512);     // the next four blocks of the same rows
  CHECK(scale_offset(mxfp8, 256, 128, 0) == 1024);  // the next rows: 256 elements are two tiles
  CHECK(scale_offset(nvfp4, 256, 128, 0) == 2048);  // 16 elements a block: four
}

TEST_CASE("every scale has a byte of its own inside whole tiles") {
  for (const auto& scaling : {mxfp8, nvfp4})
    for (const std::int64_t rows : {1, 127, 128, 130, 384})
      for (const std::int64_t k : {32, 64, 160, 512, 1056}) {
        CAPTURE(rows);
        CAPTURE(k);
        std::set<std::int64_t> places;
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t block = 0; block < k / scaling.elements; ++block)
            places.insert(scale_offset(scaling, k, row, block));
        CHECK(static_cast<std::int64_t>(places.size()) == rows * (k / scaling.elements));
        CHECK(*places.rbegin() < scale_bytes(scaling, rows, k));
        CHECK(scale_bytes(scaling, rows, k) % 512 == 0);
      }
}

TEST_CASE("bytes of operands and scales by hand") {
  CHECK(operand_bytes(mxfp8, 8192, 4096) == 33554432);
  CHECK(scale_bytes(mxfp8, 8192, 4096) == 1048576);  // a 32nd
  CHECK(operand_bytes(nvfp4, 8192, 4096) == 16777216);
  CHECK(scale_bytes(nvfp4, 8192, 4096) == 2097152);    // a 16th of the elements
  CHECK(scale_bytes(mxfp8, 130, 160) == 2 * 2 * 512);  // padded to 256 rows and 8 blocks
}

TEST_CASE("only Blackwell runs the products and casts that are scaled along k") {
  const auto hopper = profile::data_sheet("h200-sxm").device, blackwell = profile::data_sheet("gb200-nvl72").device,
             ultra = profile::data_sheet("gb300-nvl72").device;
  for (const char* family : {"gemm.mxfp8.tn", "gemm.grouped.mxfp8.tn.acc_f32", "gemm.nvfp4.tn", "quantize.nvfp4"}) {
    CAPTURE(family);
    REQUIRE(lacks(hopper, family));
    CHECK(lacks(hopper, family)->find("no block-scaled tensor cores") != std::string::npos);
    CHECK(lacks(hopper, family)->find("9.0") != std::string::npos);
    CHECK(!lacks(blackwell, family));
    CHECK(!lacks(ultra, family));
  }
  for (const char* family : {"gemm.bf16.tn", "gemm.fp8.block.tn", "cast.fp8", "attention.forward.bf16"})
    CHECK(!lacks(hopper, family));
}

TEST_CASE("the library takes every shape of the grid that is scaled along k") {
  int shapes = 0;
  for (const auto& key : grid(false)) {
    const auto scaling = block_scaling(key.family);
    if (!scaling || !key.family.starts_with("gemm.")) continue;
    ++shapes;
    CAPTURE(key.family);
    if (key.family.starts_with("gemm.grouped.")) {
      const auto rows = key.dims[1] / key.dims[0];
      const bool wgrad = key.family != "gemm.grouped.mxfp8.tn";
      CHECK(wgrad ? takes(*scaling, key.dims[3], key.dims[2], rows) : takes(*scaling, key.dims[2], rows, key.dims[3]));
    } else {
      CHECK(takes(*scaling, key.dims[0], key.dims[1], key.dims[2]));
    }
  }
  CHECK(shapes > 500);
  CHECK(!takes(mxfp8, 4096, 4096, 100));  // no whole blocks
  CHECK(!takes(nvfp4, 4096, 4100, 4096));
}

}  // namespace block_scales_test
