// What --report writes.
#pragma once

#include <string>

#include "pipewright/page.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::cli {

/// A run for a page, with its memory over the step.
report::RunShown shown(std::string title, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                       const predict::Prediction& prediction, const predict::Run& run);

}  // namespace pipewright::cli
