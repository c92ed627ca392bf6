// Which shapes are measured: the exact ones of common dense models at their usual splits, then a coarse regular grid
// from 1B to 405B models, so that every layer shape in between is interpolated. Most useful shapes first: a capture
// that is stopped early has them.
#pragma once

#include <vector>

#include "pipewright/profile.hpp"

namespace pipewright::capture {

/// Every shape once. `quick`: a hundred or so.
std::vector<profile::Key> grid(bool quick);

/// Sizes in bytes of messages and collectives, ascending.
std::vector<std::int64_t> message_sizes(bool quick);

}  // namespace pipewright::capture
