// Memory of a rank over a step: who holds what and what is reserved, instruction by instruction, and the allocator's
// segments at the peak.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/memory.hpp"

namespace pipewright::memory {

struct History {
  static constexpr std::uint32_t start = 0xffffffff, optimizer = 0xfffffffe;  ///< instead of an instruction
  /// The most that an instruction allocates at once, and what is left when it is done; unchanged ones are left out.
  struct Sample {
    std::uint32_t instruction = start;  ///< of the rank's program
    double place = 0;                   ///< 0 to 1: kernels that the instruction had launched by then
    Bytes allocated, reserved;          ///< as the allocator counts; reserved with the graphs' pools
  };
  std::vector<Sample> samples;
  std::vector<std::string> owners;
  std::vector<std::vector<Bytes>> held;                   ///< [owner][sample]; in all: allocated
  std::size_t peak = 0;                                   ///< the sample with the most allocated
  std::vector<Segment> segments;                          ///< at the peak, by address
  std::vector<std::vector<std::int32_t>> segment_owners;  ///< [segment][block]: index into owners; -1: free
};

/// Of the step that walk() looks at. `device`: what the allocator may take, where cached blocks had to be given back
/// (Walk::retried); none: no limit.
History history(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                int pp_rank, std::optional<Bytes> device = {});

}  // namespace pipewright::memory
