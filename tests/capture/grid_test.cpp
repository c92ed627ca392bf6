#include "grid.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

namespace grid_test {

using namespace pipewright;
using profile::Key;

TEST_CASE("every shape belongs to a family, has its dimensions, is positive and comes once") {
  for (const bool quick : {false, true}) {
    std::set<Key> seen;
    for (const Key& key : capture::grid(quick)) {
      CHECK(key.dims.size() == profile::family(key.family).dims.size());
      CHECK(std::all_of(key.dims.begin(), key.dims.end(), [](auto d) { return d > 0; }));
      CHECK_MESSAGE(seen.insert(key).second, key.family);
    }
  }
}

TEST_CASE("every kernel family is measured, by the quick grid all that a Llama layer needs") {
  std::set<std::string> full, quick;
  for (const Key& key : capture::grid(false)) full.insert(key.family);
  for (const Key& key : capture::grid(true)) quick.insert(key.family);
  for (const auto& family : profile::families()) {
    if (family.load == profile::Load::network) continue;
    // The host's own work: measure_host_optimizer, by how many do it at once.
    if (family.name == "adam.host" || family.name == "copy.h2d.pageable") continue;
    // Loops of PyTorch operations around a mixture's products are read from traced steps, not measured alone.
    if (family.name.starts_with("clamp.") || family.name.starts_with("moe.bias.")) continue;
    // Routers, maps of rows, Transformer Engine's losses: kernels/megatron_probe.py.
    if (family.name.starts_with("cross_entropy.te.") || family.name == "moe.sort_map" ||
        family.name == "moe.row_id_map" ||
        (family.name.starts_with("moe.router.") && !family.name.starts_with("moe.router.gemm")))
      continue;
    // What PyTorch chooses or compiles (adapters' products, FlexAttention, loops around scores, what Transformer Engine
    // does beside attention with context parallelism) was timed in Python.
    static constexpr const char* of_torch[] = {
        "gemm.lora.",   "attention.softcap.", "attention.thd.", "qk_l2_norm.",       "fast_gelu.",
        "glu.",         "cat.heads",          "gate.",          "gated_delta.",      "mamba.",
        "index_select", "cast.bf16_f16",      "out_correction", "swiglu.any_width.", "squared_relu.any_width."};
    // So were the norms of untuned widths, cuDNN's and those for FP8, as Transformer Engine runs them.
    if (family.name.ends_with(".general") || family.name.ends_with(".cudnn")) continue;
    if (family.name.find("norm.") != std::string::npos &&
        (family.name.ends_with(".amax") || family.name.ends_with(".fp8")))
      continue;
    // An optimizer's shards in FP8: Transformer Engine's kernel for any shape, as its steps run it.
    if (family.name == "cast_transpose.fp8.row") continue;
    if (std::ranges::any_of(of_torch, [&](const char* prefix) { return family.name.starts_with(prefix); })) continue;
    CHECK_MESSAGE(full.count(family.name) == 1, family.name);
  }
  for (const char* name : {"gemm.bf16.tn", "gemm.fp8.tn.split", "attention.backward.bf16", "rmsnorm.backward",
                           "swiglu.backward", "rope.forward", "cast_transpose.fp8", "adam", "copy.d2h"}) {
    CHECK_MESSAGE(quick.count(name) == 1, name);
  }
}

TEST_CASE("layer shapes of Llama 3 70B at tensor parallel 4 are measured exactly") {
  const auto keys = capture::grid(false);
  const std::set<Key> all(keys.begin(), keys.end());
  for (const Key& key : {Key{"gemm.fp8.tn", {14336, 4096, 8192}}, Key{"gemm.fp8.tn.split", {8192, 4096, 14336}},
                         Key{"gemm.fp8.tn.acc_bf16", {8192, 14336, 4096}}, Key{"gemm.bf16.tn", {32064, 4096, 8192}},
                         Key{"attention.forward.bf16", {1, 4096, 4096, 16, 2, 128}}}) {
    CHECK_MESSAGE(all.count(key) == 1, key.family);
  }
}

TEST_CASE("shapes that cuBLASLt's FP8 kernels refuse are not asked for") {
  for (const Key& key : capture::grid(false)) {
    if (key.family.rfind("gemm.fp8", 0) != 0) continue;
    for (const auto d : key.dims) CHECK(d % 16 == 0);
  }
}

TEST_CASE("message sizes ascend from 64 KiB to 1 GiB") {
  const auto sizes = capture::message_sizes(false);
  CHECK(std::is_sorted(sizes.begin(), sizes.end()));
  CHECK(sizes.front() == 1 << 16);
  CHECK(sizes.back() == 1 << 30);
}

}  // namespace grid_test
