// Pieces of the JSON contract that several commands share. nlohmann's ordered_json keeps the contract's key order.
#pragma once

#include <nlohmann/json.hpp>

#include "pipewright/predict.hpp"
#include "pipewright/report.hpp"

namespace pipewright::report {

using Json = nlohmann::ordered_json;

Json prediction_json(const predict::Prediction& prediction);
Json exposed_json(const timeline::Account& account);

/// Pretty-printed, ending with a newline. Text that is not UTF-8 (names of files) is replaced, never thrown at the
/// user.
std::string dumped(const Json& json);
/// With what stands at the head of every result; null: nothing.
std::string dumped(const Json& body, const Stamp* stamp);
Json stamped(const Json& body, const Stamp& stamp);

Json configuration_json(const scenario::Scenario& scenario);

/// `value` with this many decimals, so that the last bits of a division do not reach the output.
double rounded(double value, int decimals);

}  // namespace pipewright::report
