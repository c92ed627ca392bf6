#include "pace.hpp"

#include "lines.hpp"
#include "pipewright/scenario/derived.hpp"

namespace pipewright::timeline {

Pace::Pace(const scenario::Scenario& scenario, const profile::Profiles& profiles)
    : gap_ns(nanoseconds(profiles.scalar("host.kernel_gap_us").value)),
      clocks(profiles.clock_law(scenario.settings.fp8 || scenario.settings.fp4 ? "fp8" : "bf16")),
      matrix(profiles.scalar("contention.matrix").value),
      attention(profiles.scalar("contention.attention").value),
      memory(profiles.scalar("contention.memory").value) {
  if (!clocks) return;
  clocks = clocks->among(scenario::lockstep_gpus(scenario));
  window_ns = static_cast<std::int64_t>(ms_to_ns(profiles.scalar("clocks.window_ms").value));
}

double Pace::contention(profile::Load load) const {
  switch (load) {
    case profile::Load::matrix:
      return matrix;
    case profile::Load::attention:
      return attention;
    case profile::Load::memory:
      return memory;
    default:
      return 1;
  }
}

}  // namespace pipewright::timeline
