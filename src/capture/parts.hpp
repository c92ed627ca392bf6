// The parts of a capture; each adds to the profile what it measured and looks at `stop` often.
#pragma once

#include <atomic>
#include <functional>

#include "ops.hpp"
#include "pipewright/capture.hpp"
#include "seats.hpp"
#include "wanted.hpp"

namespace pipewright::capture {

struct Session {
  const Options& options;
  const std::function<void(const Progress&)>& report;
  const std::atomic<bool>& stop;
  Result& result;
  Wanted wants;
};

inline profile::Sample sample_of(std::vector<std::int64_t> dims, const Summary& s) {
  return {std::move(dims), s.median, s.spread, s.count, profile::Origin::measured, {}};
}

/// host.time_factor, host.slow_share, host.rank_spread: how fast hosts are (host_speed.hpp); host.*_us: what calls of
/// the runtime cost the host, always stated for the reference host, and the gap between two kernels of a stream.
/// `devices`: GPUs of this machine, each with two busy threads (forward and backward pass).
void measure_host(Lab& lab, Session& session, int devices);

/// Clocks: a transformer layer's kernels, and those of each kind alone, at several shares of busy time, against the
/// same kernels on a cool part.
void measure_clocks(Lab& lab, Attention& attention, Session& session);

/// Launches every kernel of a transformer layer once (bf16 and FP8), so that they are loaded.
void load_layer_kernels(Lab& lab, Attention& attention);

/// Links between all visible GPUs (2 and up to 4 of them), memory of communicators.
void measure_links(Session& session);

/// Links between the GPUs of all processes that a launcher started, over NVLink and the network between hosts.
void measure_links_between_hosts(Session& session);

/// contention.gpus_N.copy_*: copies between the first N GPUs and their host's memory at once, over one GPU's alone.
void measure_host_copies(Session& session, int devices);

/// adam.host, copy.h2d.pageable: an optimizer on the host, by one process and by one for each GPU at once.
void measure_host_optimizer(Session& session, int devices);

}  // namespace pipewright::capture
