// An H100 SXM from the measurements of an H200 SXM, sample by sample.
//
// Both are the same GH100 die with 132 SMs, the same L2, NVLink 4 and 700 W (NVIDIA H100 and H200 data sheets): what
// computes, and what crosses NVLink or PCIe, takes equal times. Memory differs: HBM3 at 3.35 TB/s against HBM3e at
// 4.8 TB/s. A kernel that moves B bytes in t is bound by memory for the share
//
//     s = B / (t x sustained),    sustained: the best that the measured kernels reach
//
// of its time, and takes t x max(1, s x 4.8/3.35) on the slower memory: it hides its traffic behind computing until
// that alone lasts longer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

constexpr double h200_bytes_per_ns = 4800, h100_bytes_per_ns = 3350;  // NVIDIA data sheets
// total_memory=81089MB: torch 2.7's device properties of an "NVIDIA H100 80GB HBM3" under CUDA 12.8, as printed in
// published logs (81082 to 81090 MiB by driver); what cudaMemGetInfo calls the total.
constexpr std::int64_t h100_memory = std::int64_t{81089} * 1024 * 1024;
// A family that stays below this share of the peak for every size is bound by something else than memory.
constexpr double streams_from = 0.5;
// Buffers that fit into the L2 of 50 MB may not travel to memory at all: they say nothing of its speed.
constexpr double beyond_l2 = 4 * 50e6;

/// The best bandwidth (B/ns) over the samples of one family that are too large for the L2.
double best_rate(const Family& f, const std::vector<Sample>& samples) {
  double best = 0;
  for (const auto& s : samples) {
    const double bytes = f.bytes(s.dims);
    if (bytes >= beyond_l2) best = std::max(best, bytes / s.ns);
  }
  return std::min(best, h200_bytes_per_ns);
}

}  // namespace

Profile derive_h100(const Profile& h200) {
  Profile p = h200;
  p.name = "h100-sxm";
  p.device = "NVIDIA H100 80GB HBM3";
  p.origin = Origin::derived;
  p.memory = Bytes(h100_memory);
  p.interpolation.clear();
  p.provenance.insert(
      p.provenance.begin(),
      fmt::format("derived from {} ({}): the same die; memory at 3.35 instead of 4.8 TB/s", h200.name, h200.device));

  double best_of_all = 0;
  for (const auto& [name, samples] : h200.samples) {
    const Family& f = family(name);
    if (f.load == Load::memory) best_of_all = std::max(best_of_all, best_rate(f, samples));
  }
  if (best_of_all <= 0) best_of_all = h200_bytes_per_ns;

  for (auto& [name, samples] : p.samples) {
    const Family& f = family(name);
    const double own = f.load == Load::memory ? best_rate(f, samples) : 0;
    const double sustained = own >= streams_from * h200_bytes_per_ns ? own : best_of_all;
    const bool uses_memory = f.load == Load::memory || f.load == Load::matrix || f.load == Load::attention;
    for (auto& s : samples) {
      const double share = uses_memory ? std::min(1.0, f.bytes(s.dims) / (s.ns * sustained)) : 0;
      const double factor = std::max(1.0, share * h200_bytes_per_ns / h100_bytes_per_ns);
      s.ns *= factor;
      s.origin = Origin::derived;
      s.source = factor > 1 ? fmt::format("{} x {:.3f}", h200.name, factor) : h200.name;
    }
  }
  for (auto& l : p.links) l.origin = Origin::derived;
  for (auto& [name, s] : p.scalars) s.origin = Origin::derived;
  p.prepare();
  return p;
}

}  // namespace pipewright::profile
