// The least memory with which a process still runs. Up to where it would reserve more than the least that is tried it
// is the same under every limit: only what follows is replayed for each, from recorded events.
#include <algorithm>
#include <deque>
#include <vector>

#include "limits.hpp"
#include "rewind.hpp"

namespace pipewright::memory {
namespace {

struct Outcome {
  bool survives = true;
  Replayer::Devices on;
};

Outcome outcome(const Rewind& recorded, std::int64_t device) {
  Replayer replayer = recorded.start();
  replayer.limit(device);
  try {
    for (const Event& event : recorded.events()) replayer(event);
  } catch (const OutOfMemory&) {
    return {false, replayer.alike()};
  }
  return {true, replayer.alike()};
}

/// Whether a process runs, for one device after the other: each replay tells of all on which it would go alike.
class Survival {
 public:
  Survival(const Stages& stages, const schedule::Program& program, const offload::Plan& plan, int rank,
           bool asynchronous, Rows rows, const AllocatorConfig& config, std::int64_t smallest_limit)
      : replayer_(config), recorded_(replayer_) {
    bool alike = true;
    const Listener listener = [&](const Event& event) {
      if (!alike) return recorded_.record(event);
      recorded_.record(event, replayer_);
      try {
        replayer_(event);
        alike = replayer_.reserved() <= smallest_limit;
      } catch (const OutOfMemory&) {  // a share of the device, less than the limits
        alike = false;
      }
    };
    Walker walker(stages, program, plan, rank, asynchronous, listener, rows);
    walker.reach_second_step();
    walker.step();
  }
  bool on(std::int64_t device) {
    auto found = std::ranges::find_if(known_, [&](const Outcome& one) { return one.on.contain(device); });
    if (found == known_.end()) found = known_.insert(found, outcome(recorded_, device));
    return found->survives;
  }

 private:
  Replayer replayer_;
  Rewind recorded_;
  std::vector<Outcome> known_;
};

}  // namespace

Bytes least_to_run(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                   int pp_rank, Bytes too_little, Bytes enough, Bytes resolution) {
  AllocatorConfig config = allocator_config(scenario);
  config.device_bytes = INT64_MAX;
  const auto plan = offload::resolve(scenario, stages, program, pp_rank);
  std::deque<Survival> each;  // they stay where they are
  for (const Rows rows : processes(stages, pp_rank))
    each.emplace_back(stages, program, plan, pp_rank, transfers_are_asynchronous(scenario), rows, config,
                      Limits(config, too_little).device);
  std::int64_t fails = too_little.value, works = enough.value;
  while (works - fails > resolution.value) {
    const std::int64_t middle = fails + (works - fails) / 2;
    const bool all =
        std::ranges::all_of(each, [&](Survival& one) { return one.on(Limits(config, Bytes(middle)).device); });
    (all ? works : fails) = middle;
  }
  return Bytes(works);
}

}  // namespace pipewright::memory
