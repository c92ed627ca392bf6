// Everybody's published runs (tests/published/*.yaml): each error may only fall. bounds.txt holds what this version
// reached, in percent; after an improvement run this test with PIPEWRIGHT_ACCEPT=1, which writes it anew, and
// `pipewright validate tests/published --markdown docs/accuracy-published.md`.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "../ratchet.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/model.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/schedule.hpp"
#include "pipewright/timeline.hpp"
#include "pipewright/validate.hpp"

using namespace pipewright;

namespace {

const std::string folder = std::string(SOURCE_ROOT) + "/tests/published/";
constexpr double slack = 0.3;  // points: what a change elsewhere may move a run

const profile::Profiles& profiles_of(const std::string& name) {
  static std::map<std::string, profile::Profiles> loaded;
  if (!loaded.contains(name))
    loaded.emplace(name, profile::Profiles(
                             {profile::load(std::string(SOURCE_ROOT) + "/profiles/" + name + ".json", {"test", 0})}));
  return loaded.at(name);
}

std::set<std::filesystem::path> scenarios_in(const std::filesystem::path& place) {
  std::set<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(place))
    if (file.path().extension() == ".yaml") files.insert(file.path());
  return files;
}

const validate::Validation& all() {
  static const validate::Validation validation = [] {
    validate::Validation v;
    v.mode = "cold";
    for (const auto& file : scenarios_in(folder)) {
      const auto run = scenario::read(file.string());
      validate::add(v, run, profiles_of(run.cluster.profile));
    }
    return v;
  }();
  return validation;
}

/// The scenario but for its name, what was measured, and what no physics reads of Bridge's version: its third number.
std::string configuration(scenario::Scenario run) {
  run.name.clear();
  run.measured.reset();
  if (auto& bridge = run.software.megatron_bridge)
    *bridge = bridge->substr(0, bridge->find('.', bridge->find('.') + 1));
  return scenario::write(run);
}

/// Times alone, without the walk over memory, which is half of a prediction.
predict::Prediction times_of(const scenario::Scenario& run) {
  scenario::check(run);
  const auto& profiles = profiles_of(run.cluster.profile);
  const auto stages = model::build(run, profiles.device());
  const auto program = schedule::build(schedule::config_of(run, true));
  const auto result = timeline::simulate(run, stages, program, profiles);
  predict::Prediction times;
  times.forward_backward_ns = result.forward_backward;
  times.optimizer_ns = result.optimizer;
  times.step_ns = result.forward_backward + result.optimizer;
  return times;
}

/// Releases that repeat a configuration: they count in no mean, and may get no worse either. What differs in the third
/// number of Bridge's version alone is predicted once.
const std::map<std::string, double>& other_releases() {
  static const std::map<std::string, double> errors = [] {
    std::map<std::string, predict::Prediction> known;
    for (const auto& c : all().cases) known[configuration(c.scenario)] = c.prediction;
    std::map<std::string, double> found;
    for (const auto& release : std::filesystem::directory_iterator(folder + "by-release"))
      for (const auto& file : scenarios_in(release.path())) {
        const auto run = scenario::read(file.string());
        const auto key = configuration(run);
        if (!known.contains(key)) known[key] = times_of(run);
        found[release.path().filename().string() + "/" + file.stem().string()] =
            100 * std::abs(validate::predicted_ms(run, known.at(key)) / validate::measured_ms(run) - 1);
      }
    return found;
  }();
  return errors;
}

}  // namespace

TEST_CASE("no published run is further off than it was") {
  const auto& v = all();
  std::map<std::string, double> reached;
  for (const auto& c : v.cases) reached[c.scenario.name] = 100 * std::abs(validate::time_error(c));
  reached.insert(other_releases().begin(), other_releases().end());
  reached["dense_mean"] = 100 * v.dense().time.mean_abs;
  reached["mixtures_mean"] = 100 * v.mixtures().time.mean_abs;
  reached["mixtures_disorder"] = 100 * (1 - v.mixtures().tau_of_tflops.value_or(-1));
  test::check_bounds(folder + "bounds.txt", reached, slack);
}

TEST_CASE("90 % intervals hold 80 to 97 % of dense runs and of mixtures") {
  for (const bool mixtures : {false, true}) {
    const auto group = mixtures ? all().mixtures() : all().dense();
    CAPTURE(mixtures);
    CHECK(*group.in_interval >= 0.80);
    CHECK(*group.in_interval <= 0.97);
    for (const auto& [profile, part] : all().by_profile(mixtures))
      MESSAGE(std::string(mixtures ? "mixtures on " : "dense on ")
              << profile << ": " << 100 * part.in_interval.value_or(0) << " % of " << part.runs
              << " inside, median half width " << 100 * part.half_width.value_or(0) << " %");
  }
}

TEST_CASE("every published run says where it stands, and what was measured is what its throughput says") {
  int told = 0;
  for (const auto& c : all().cases) {
    CAPTURE(c.scenario.name);
    const auto& measured = *c.scenario.measured;
    CHECK_FALSE(measured.source.empty());
    if (!measured.tokens_per_s_per_gpu) continue;  // of some logs the step's time is all there is
    ++told;
    const double tokens = static_cast<double>(c.scenario.settings.global_batch_size * c.scenario.model.seq_length);
    const double step_ms =
        1e3 * tokens / *measured.tokens_per_s_per_gpu / static_cast<double>(c.scenario.cluster.num_gpus);
    CHECK(step_ms == doctest::Approx(*measured.step_ms).epsilon(0.002));
  }
  CHECK(told > 20);
}

TEST_CASE("what a run or scenario of ours ignores is not modelled") {
  for (const char* where : {"/tests/published", "/scenarios"})
    for (const auto& file : std::filesystem::directory_iterator(SOURCE_ROOT + std::string(where))) {
      if (file.path().extension() != ".yaml") continue;
      CAPTURE(file.path().string());
      const auto s = scenario::read(file.path().string());
      const auto through = scenario::let_through(s);
      for (const auto& name : s.ignore) {
        CAPTURE(name);
        CHECK(std::ranges::find(through, name) != through.end());
      }
    }
}

TEST_CASE("the table in docs is what `validate --markdown` prints") {
  std::ifstream in(std::string(SOURCE_ROOT) + "/docs/accuracy-published.md");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string begin = "<!-- begin: validate tests/published --markdown - -->\n\n";
  const auto from = text.find(begin);
  REQUIRE(from != std::string::npos);
  const auto shown = text.substr(from + begin.size(), text.find("<!-- end -->", from) - from - begin.size());
  std::istringstream now(report::validate_markdown(all())), before(shown);
  std::vector<std::string> stale;  // else each difference would show the whole table
  for (std::string line; std::getline(now, line);) {
    std::string old;
    std::getline(before, old);
    if (line != old) stale.push_back("shown:  " + old + "\nprinted: " + line);
  }
  CAPTURE(stale.size());
  CHECK_MESSAGE(stale.empty(), (stale.empty() ? "" : stale.front() + "\n.ci/docs.py writes it anew"));
  for (std::string line; std::getline(before, line);) CHECK(line.empty());
}
