#include "host_optimizer.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>

#include "pipewright/scenario/derived.hpp"

namespace pipewright::model {
namespace {

using scenario::Scenario;

Int sum(const std::vector<Int>& shards) { return std::accumulate(shards.begin(), shards.end(), Int{0}); }

/// torchrun sets OMP_NUM_THREADS to 1 where it starts several processes and the user has not
/// (torch/distributed/run.py).
Int threads(const Scenario& s) {
  return std::clamp<Int>(std::atoll(scenario::variable(s, "OMP_NUM_THREADS", "1").c_str()), 1, 1024);
}
Int processes(const Scenario& s) { return std::min(s.cluster.gpus_per_node, s.cluster.num_gpus); }

/// `main` pins the fp32 copy again (d98e8a64dd, hybrid_optimizer.py).
bool pins_parameters(const Scenario& s) {
  return scenario::core_version(s.software) == scenario::Version::main && s.settings.pin_cpu_params;
}

}  // namespace

HostShare host_share(const std::vector<Int>& shards, double fraction) {
  HostShare share;
  const double threshold = static_cast<double>(sum(shards)) * fraction;
  Int moved = 0;
  for (const Int n : shards) {
    const bool moves = static_cast<double>(moved) < threshold;
    (moves ? share.host : share.gpu).push_back(n);
    if (moves) moved += n;
  }
  return share;
}

HostBytes host_bytes(const Scenario& s, const HostShare& share) {
  const auto block = [](Int bytes) { return static_cast<Int>(std::bit_ceil(static_cast<std::uint64_t>(bytes))); };
  Int pinned = 0, pageable = 0;
  for (const Int n : share.host) {
    pinned += block(4 * n);  // the gradient
    pageable += 8 * n;       // moments
    (pins_parameters(s) ? pinned : pageable) += pins_parameters(s) ? block(4 * n) : 4 * n;
  }
  return {Bytes(pinned), Bytes(pageable)};
}

std::vector<Kernel> host_optimizer_step(const Scenario& s, const HostShare& share, Int gradient) {
  std::vector<Kernel> step;
  const auto add = [&](const char* name, profile::Key key, std::size_t launches, Purpose purpose = Purpose::compute) {
    Kernel kernel;
    kernel.name = name;
    kernel.key = std::move(key);
    kernel.launches = static_cast<int>(launches);
    kernel.purpose = purpose;
    step.push_back(std::move(kernel));
  };
  const Int host = sum(share.host), gpu = sum(share.gpu);
  const bool overlaps = s.settings.overlap_cpu_optimizer_d2h_h2d;
  if (gradient == 2) add("gradients to fp32", {"cast.bf16_f32", {host + gpu}}, share.host.size() + share.gpu.size());
  // Copies have a queue of their own; Adam of a shard takes longer than the copy of the next one.
  if (host > 0)
    add("gradients to host", {"copy.d2h", {4 * (overlaps ? share.host.front() : host)}},
        overlaps ? 1 : share.host.size(), Purpose::offload);
  if (gpu > 0) {
    add("adam", {"adam", {gpu}}, share.gpu.size());
    add("parameters from main parameters", {"cast.f32_bf16", {gpu}}, share.gpu.size());
  }
  if (host == 0) return step;
  add("adam on the host", {"adam.host", {processes(s) * threads(s), processes(s) * host}}, share.host.size(),
      Purpose::offload);
  if (pins_parameters(s))
    add("parameters to GPU", {"copy.h2d", {4 * (overlaps ? share.host.back() : host)}},
        overlaps ? 1 : share.host.size(), Purpose::offload);
  else
    add("parameters to GPU", {"copy.h2d.pageable", {processes(s), 4 * host}}, share.host.size(), Purpose::offload);
  add("parameters from main parameters", {"cast.f32_bf16", {host}}, share.host.size());
  return step;
}

}  // namespace pipewright::model
