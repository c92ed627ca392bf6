#include "kept_gathers.hpp"

#include <algorithm>

#include "pipewright/schedule.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::predict {
namespace {

constexpr double watchdog_ns = 100e6;

struct Gathered {
  double bytes = 0, ns = 0;

  void add(const model::Piece& piece, const timeline::Prices::List& prices, const std::vector<model::Step>& steps) {
    for (const auto& step : steps) {
      if (step.kind != model::Step::Kind::launch || step.before_microbatch <= 1) continue;
      const auto& kernel = piece.kernels[step.index];
      if (kernel.graphed) continue;
      bytes += static_cast<double>(kernel.kept);
      if (kernel.stream == model::Stream::compute) ns += static_cast<double>(prices[step.index].time.ns);
    }
  }
  double in(double span_ns) const { return ns > 0 ? bytes * span_ns / ns : 0; }
};

}  // namespace

model::Stages stages_of(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  auto stages = model::build(scenario, profiles.device());
  const bool keeps = std::ranges::any_of(stages.pieces, [](const model::Piece& piece) {
    return std::ranges::any_of(piece.kernels, [](const model::Kernel& kernel) { return kernel.kept > 0; });
  });
  if (!keeps) return stages;
  const auto prices = timeline::price(scenario, stages, profiles);
  const auto microbatches = static_cast<double>(schedule::config_of(scenario).microbatches);
  const auto owner = static_cast<std::uint32_t>(stages.owners.size());
  stages.owners.emplace_back("gathers that NCCL's watchdog holds");
  for (auto& rank : stages.ranks) {
    Gathered forward, backward;
    for (const auto& chunk : rank.chunks)
      for (const auto index : chunk.pieces) {
        const auto& piece = stages.pieces[index];
        forward.add(piece, prices.pieces[index], piece.forward);
        backward.add(piece, prices.pieces[index], piece.backward);
      }
    const double held = std::min(std::max(forward.in(watchdog_ns), backward.in(watchdog_ns)),
                                 (forward.bytes + backward.bytes) * microbatches);
    if (held > 0)
      rank.since_first_step.push_back(model::Tensor{owner, Bytes(static_cast<std::int64_t>(held)),
                                                    model::Stream::compute, model::Tensor::Home::allocator});
  }
  return stages;
}

}  // namespace pipewright::predict
