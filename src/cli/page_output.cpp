// Runs on pages, see page.hpp.
#include "page_output.hpp"

namespace pipewright::cli {

report::RunShown shown(std::string title, const scenario::Scenario& scenario, const profile::Profiles& profiles,
                       const predict::Prediction& prediction, const predict::Run& run) {
  return {std::move(title), &prediction, &run, predict::histories(prediction, scenario, profiles, run)};
}

}  // namespace pipewright::cli
