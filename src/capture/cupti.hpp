// The live activity source: one at a time in a process.
#pragma once

#include <memory>

#include "activity.hpp"

namespace pipewright::capture {

std::unique_ptr<ActivitySource> cupti_source();

}  // namespace pipewright::capture
