// A run as columns of a page: what each stream does when, why compute streams wait, the critical path; and each rank's
// memory by owner. page/run.js reads them.
#pragma once

#include <string>

#include "pack.hpp"
#include "pipewright/page.hpp"
#include "to_json.hpp"

namespace pipewright::report {

/// Adds columns whose names begin with `prefix`; the result describes them.
Json timeline_columns(const predict::Prediction& prediction, const predict::Run& run, const std::string& prefix,
                      Pack& pack);
Json traced_columns(const RunTraced& traced, const std::string& prefix, Pack& pack);
Json memory_columns(const RunShown& shown, const std::string& prefix, Pack& pack);

}  // namespace pipewright::report
