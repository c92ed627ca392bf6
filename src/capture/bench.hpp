// Times one op on a cool part.
//
//   gate (spins until the host has queued everything) │ warm │ op │ op │ op │ ... │ clock probe │   pause
//
// A sample is the span from the first activity's start to the last one's end of one launch, as CUPTI recorded it. Every
// launch works on other memory (Operand::slots). Bursts are short and followed by a pause, so that the part's power
// limit does not lower the clock; a burst that ended at a lower clock is repeated after a longer pause.
#pragma once

#include <functional>
#include <optional>

#include "lab.hpp"
#include "sample_statistics.hpp"

namespace pipewright::capture {

struct Op {
  std::function<void(int slot)> launch;
  /// What the preceding op of a training step leaves behind (data in the L2 cache); not timed.
  std::function<void(int slot)> before;
  /// Shares of time to stay idle after a burst: matrix work draws power near the limit, copies do not.
  double pause = 0.5;
  /// Launches that may run different kernels, by slot.
  int variants = 1;
};

struct Measurement {
  Summary ns;
  double mhz = 0;    ///< SM clock at the end of the bursts
  bool cool = true;  ///< the clock was full
};

struct Effort {
  int least = 8;  ///< samples
  int most = 24;
  double noise = 0.005;  ///< standard error to reach, of the mean
};

Measurement measure(Lab& lab, const Op& op, const Effort& effort);

}  // namespace pipewright::capture
