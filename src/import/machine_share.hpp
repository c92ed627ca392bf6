// What of a run's times is its machine's, and so holds for other runs, and what is the run's own.
#pragma once

#include "pipewright/import.hpp"
#include "pipewright/model.hpp"

namespace pipewright::traces {

struct Traced {
  double span_us = 0;    ///< of the traced step, the longest over the ranks; 0: no rank's trace is a whole one
  double full_load = 1;  ///< what the run's load makes of its matrix products by the clock law, over cool ones
};

/// Leaves in the profile what other runs may take from this one, beside the profiles of lone kernels: times of
/// operations that those do not know, and one factor on all kernels (scalar machine.slowdown). What the run took
/// otherwise is told by notes.
void keep_machine_share(Import& result, const scenario::Scenario& scenario, const model::Stages& stages,
                        const profile::Profiles& lone, const Traced& traced);

/// nullopt: none of the profiles knows the family.
std::optional<profile::Timing> lone_time(const profile::Key& key, const profile::Profiles& lone);

/// "gemm.bf16.tn m=4096 n=4096 k=4096"
std::string shape(const profile::Key& key);

}  // namespace pipewright::traces
