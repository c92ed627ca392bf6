// One HTML page that carries everything itself: the results as JSON, and of runs the whole step and its memory. It
// opens without a network; the browser must know DecompressionStream (Chromium 80, Firefox 113, Safari 16.4 and later).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/histories.hpp"
#include "pipewright/predict.hpp"

namespace pipewright::plan {
struct Plan;
}
namespace pipewright::validate {
struct Validation;
}

namespace pipewright::report {

/// A run whose timeline and memory the page shows.
struct RunShown {
  std::string title;  ///< "best", "given"; what tells it from another on the same page
  const predict::Prediction* prediction = nullptr;
  const predict::Run* run = nullptr;
  std::vector<predict::RankHistory> memory;
};

/// A real run's streams, rank by rank, beside a prediction's.
struct RunTraced {
  struct Slice {
    std::string name, kind;  ///< of what it ran; comp, p2p, ep, coll, d2h, h2d
    std::int64_t start = 0, ns = 0;
  };
  std::string title;
  std::int64_t step_ns = 0;
  std::map<int, std::vector<Slice>> ranks;  ///< by pipeline rank, each by start
};

struct Page {
  std::string title;
  std::string kind;  ///< the command: decides what stands first
  std::vector<std::pair<std::string, std::string>>
      results;  ///< command -> what its --json writes; figures come from it
  std::vector<RunShown> runs;
  std::string extra;  ///< a JSON object of what the page shows beside
  std::vector<RunTraced> traced = {};
};

std::string html(const Page& page);

/// Page::extra of a plan: what its text says beyond its JSON (changes, flags with their comments, where candidates
/// differ, what each takes of its device, its parallelism).
std::string plan_extra(const plan::Plan& plan);
/// Of a validation: what traces showed, busy and exposed, beside the predictions.
std::string validate_extra(const validate::Validation& validation);

}  // namespace pipewright::report
