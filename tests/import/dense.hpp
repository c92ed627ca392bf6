// The measured run whose kernel lists stand in tests/measured: two of the four stages of a dense model.
#pragma once

#include "pipewright/scenario/io.hpp"

namespace pipewright::test {

inline scenario::Scenario dense() { return scenario::read("../measured/a_pp4v2_m8.yaml"); }

inline scenario::TraceSummary measured(int rank) {
  return *dense().measured->ranks.at(static_cast<std::size_t>(rank)).trace_summary;
}

}  // namespace pipewright::test
