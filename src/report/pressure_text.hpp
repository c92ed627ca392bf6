// What predict() tells of pressure, as text and as JSON.
#pragma once

#include <string>

#include "pipewright/predict.hpp"
#include "to_json.hpp"

namespace pipewright::report {

std::string pressure_text(const predict::Prediction& prediction);  ///< a table over ranks; empty without any
/// Which blocks pin a rank's cached memory.
std::string fragmentation_text(const predict::RankPrediction& rank);
Json pressure_json(const predict::Prediction& prediction, const predict::RankPrediction& rank);

}  // namespace pipewright::report
