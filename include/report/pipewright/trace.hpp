// Traces for Perfetto and chrome://tracing (Chrome's trace events).
#pragma once

#include <string>
#include <vector>

#include "pipewright/histories.hpp"
#include "pipewright/predict.hpp"

namespace pipewright::report {

struct Trace {
  std::string text;      ///< JSON, or that as gzip
  std::string left_out;  ///< what it has no room for, in words; empty: it has all
};

/// A process a rank; threads: the schedule, what its compute stream waits for, its host, its streams; an arrow for
/// every transfer; counters of allocated and reserved memory (with `memory`) and of what the allocator may take. The
/// whole step: beyond `most_kernels` the shortest kernels are left out, and the trace says so.
Trace trace(const predict::Prediction& prediction, const predict::Run& run,
            const std::vector<predict::RankHistory>& memory = {}, bool packed = false,
            std::size_t most_kernels = 800'000);

}  // namespace pipewright::report
