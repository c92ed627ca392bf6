// Sequences of kernels run over and over, as a training step loads a part for seconds.
//
//   ▇▇▇▇▇▇▇▇▇___▇▇▇▇▇▇▇▇▇___   bursts of kernels with pauses: duty = busy / (busy + pause)
//   │  │  │  │   │  │  │  │    SM clock read between kernels
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "ops.hpp"

namespace pipewright::capture {

using Bursts = std::vector<std::vector<profile::Key>>;

/// A transformer layer of Llama 8B (hidden 4096, FFN 14336, 32 heads, 8 groups, 4096 tokens), forward then backward.
Bursts layer_kernels(bool fp8);
/// Kernels of one kind only: those of that layer ("matrix", "attention"); of its norms, SwiGLU, residuals, of a
/// vocabulary of 32000 and the optimizer ("memory"); or "matrix+memory" by turns.
Bursts kernels_of(const std::string& kind, bool fp8);

struct ClockReading {
  double ms = 0;  ///< GPU time since the run's first reading
  double mhz = 0;
};

struct SustainedRow {
  double duty = 0, mhz = 0, watts = 0;
  std::vector<double> ns;  ///< mean time of each kernel, once settled
  double fluctuation = 0;  ///< standard deviation of kernel times over windows of 10 ms, relative; 0: no two windows
  std::vector<ClockReading> clock;
};

class Sequence {
 public:
  Sequence(Lab& lab, Attention& attention, const Bursts& bursts);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  /// Runs for `seconds`; duty, clock, power and times are of the part after `settle` seconds.
  SustainedRow run(double duty, double seconds, double settle, const std::atomic<bool>& stop);
  std::vector<profile::Load> loads() const;

 private:
  struct Step {
    Op op;
    profile::Load load;
  };
  void launch(std::size_t burst, std::uint64_t iteration);
  void collect(SustainedRow& row, std::uint64_t settled_at);

  Lab& lab_;
  std::vector<std::vector<Step>> bursts_;
  std::size_t op_count_ = 0;
  std::int64_t* probes_ = nullptr;  // pinned
  std::size_t probe_count_ = 0;     // of this run
  std::vector<std::uint64_t> probe_iteration_;
};

}  // namespace pipewright::capture
