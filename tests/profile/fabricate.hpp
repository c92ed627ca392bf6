// Profiles of a machine that exists only as formulas, so that every estimate has a true value to be held against.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "pipewright/profile.hpp"

namespace pipewright::profile {

/// A matrix product: 660 TFLOP/s, less for small sides (tiles at the edges, a start for every k), 3 us fixed.
inline double gemm_ns(std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto side = [](std::int64_t v, double slow) { return static_cast<double>(v) + slow; };
  return 3000 + 2 * side(m, 200) * side(n, 100) * side(k, 150) / 660e3;
}

/// A streaming kernel: 2 us fixed, then 4.2 TB/s.
inline double stream_ns(double bytes) { return 2000 + bytes / 4200; }

/// A ring of n ranks at 350 GB/s, 3 us a step.
inline double ring_ns(std::int64_t ranks, std::int64_t bytes) {
  const auto n = static_cast<double>(ranks);
  return 3000 * (n - 1) + (n - 1) / n * static_cast<double>(bytes) / 350;
}

inline Sample sample(std::vector<std::int64_t> dims, double ns) {
  return {std::move(dims), ns, 0.005, 20, Origin::measured, {}};
}

/// Matrix shapes as layers of many models have them: hidden sizes times widths, cut by tensor parallelism; and tokens.
inline std::vector<Sample> gemm_samples() {
  std::vector<Sample> samples;
  for (const std::int64_t hidden : {2048, 4096, 5120, 8192, 16384}) {
    for (const double widen : {0.25, 0.5, 1.0, 1.5, 3.5, 7.0}) {
      for (const std::int64_t tokens : {1024, 2048, 4096, 8192}) {
        const auto out = static_cast<std::int64_t>(static_cast<double>(hidden) * widen);
        samples.push_back(sample({out, tokens, hidden}, gemm_ns(out, tokens, hidden)));
      }
    }
  }
  return samples;
}

inline Profile fabricated() {
  Profile p;
  p.name = "fabricated";
  p.device.name = "a formula";
  p.memory = Bytes(150'000'000'000);
  p.versions = {{"driver", "1.2"}, {"nccl", "2.28"}};
  p.provenance = {"formulas of fabricate.hpp"};
  p.samples["gemm.bf16.tn"] = gemm_samples();
  for (std::int64_t bytes = 4096; bytes <= std::int64_t{1} << 31; bytes *= 4) {
    p.samples["fill"].push_back(sample({bytes}, stream_ns(static_cast<double>(bytes))));
    p.samples["send_recv.nvlink"].push_back(sample({bytes}, 8000 + static_cast<double>(bytes) / 370));
    for (const std::int64_t ranks : {2, 4}) {
      p.samples["all_gather.nvlink"].push_back(sample({ranks, bytes}, ring_ns(ranks, bytes)));
    }
  }
  p.samples["small"] = {sample({}, 1800)};
  p.clocks = {{"bf16",
               1980,
               700,
               {{0.2, 1980, 400, 1, 1, 1}, {0.6, 1800, 650, 1.1, 1.05, 1.0}, {1, 1500, 700, 1.3, 1.2, 1.02}}}};
  p.links = {{"nvlink", 3, 370, 1 << 20, Origin::measured, {}}, published_links().front()};
  p.scalars = {{"host.cuda_launch_us", {2.1, 0.1, Origin::measured, {}}},
               {"memory.outside.context_bytes", {536870912, 0, Origin::derived, "a \"quoted\" source"}}};
  p.prepare();
  return p;
}

}  // namespace pipewright::profile
