// Flags of a command line as they were said, and what validate_args asks of them that no field shows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipewright/scenario/types.hpp"

namespace pipewright::emit {

struct Given {
  std::string name;
  std::vector<std::string> values;
  Position where;
};

/// Refuses, as argparse does, values of a flag that nothing models. What a script leaves open (${NAME}) may be
/// anything.
void refuse_values(const Given& given, std::string_view takes);

struct Clash {
  std::string rule, flag, message, fix;
};
/// `s`: what the flags make.
std::vector<Clash> clashes(const std::vector<Given>& said, const scenario::Scenario& s);

/// Of --step-batch-size-schedule "0:16 1000B:2048" (thresholds and batches) the last batch.
std::string last_batch(const Given& schedule);

}  // namespace pipewright::emit
