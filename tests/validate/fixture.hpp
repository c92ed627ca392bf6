// Measured runs beside predictions, made of a few figures that can be worked out by hand.
#pragma once

#include "pipewright/validate.hpp"

namespace pipewright::validate::test {

/// A run with one measured rank; times in ms, peaks in bytes. `rest`: what else the prediction says, of two ranks.
inline Case run(const char* name, double measured_ms, double predicted_ms, std::int64_t measured_peak,
                std::int64_t peak, const predict::Prediction& rest) {
  Case c;
  c.scenario.name = name;
  c.scenario.measured.emplace();
  c.scenario.measured->forward_backward_ms = measured_ms;
  c.scenario.measured->optimizer_ms = 10;
  scenario::MeasuredRank rank;
  rank.rank = 4;
  rank.pp_rank = 1;
  rank.peak_allocated_bytes = Bytes(measured_peak);
  rank.peak_reserved_bytes = Bytes(measured_peak + 1);
  c.scenario.environment["NAME"] = name;  // three configurations, not three repetitions
  c.scenario.measured->ranks = {rank};
  c.prediction = rest;
  c.prediction.ranks.resize(2);
  c.prediction.forward_backward_ns = static_cast<std::int64_t>(predicted_ms * 1e6);
  c.prediction.optimizer_ns = 10'000'000;
  c.prediction.interval_low_ns = static_cast<std::int64_t>(predicted_ms * 0.95e6) + 10'000'000;
  c.prediction.interval_high_ns = static_cast<std::int64_t>(predicted_ms * 1.05e6) + 10'000'000;
  c.prediction.ranks[1].walk.peak_allocated = Bytes(peak);
  c.prediction.ranks[1].walk.peak_reserved = Bytes(peak + 1);
  return c;
}

inline Validation three(const predict::Prediction& rest = {}) {
  Validation v;
  v.mode = "cold";
  v.cases = {run("a", 100, 102, 1000, 990, rest), run("b", 200, 180, 1000, 1030, rest),
             run("c", 150, 150, 1000, 1000, rest)};
  return v;
}

}  // namespace pipewright::validate::test
