// A scenario's stages on an H200, for tests that are not about the GPU.
#pragma once

#include "pipewright/model.hpp"

namespace pipewright::test {

inline model::Stages build(const scenario::Scenario& scenario) {
  return model::build(scenario, profile::data_sheet("h200-sxm").device);
}

}  // namespace pipewright::test
