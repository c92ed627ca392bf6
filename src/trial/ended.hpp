// How a run ended, beside its log: what `--resume` takes over.
#pragma once

#include <optional>
#include <string>

#include "pipewright/process.hpp"

namespace pipewright::trial {

void keep_end(const std::string& file, const std::string& command, const Ended& ended);
/// Of a run by the very same command; none: there was no such run, or its end was not written.
std::optional<Ended> kept_end(const std::string& file, const std::string& command);

}  // namespace pipewright::trial
