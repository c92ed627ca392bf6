// Runs of pretrain_gpt.py with flags that this program emitted (tests/real/*.yaml), each with the speed of its hosts as
// traces of other runs on the machine tell it. bounds.txt holds what this version is off by, time and peak memory in
// percent: errors may only fall. After an improvement run this test with PIPEWRIGHT_ACCEPT=1, which writes it anew, and
// `pipewright validate tests/real --markdown` for the table in docs/real-runs.md.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "../ratchet.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/validate.hpp"

using namespace pipewright;

namespace {

const std::string root = SOURCE_ROOT, folder = root + "/tests/real/";
constexpr double slack = 0.3;  // points: what a change elsewhere may move a run

const validate::Validation& all() {
  static const validate::Validation validation = [] {
    validate::Validation v;
    v.mode = "cold";
    std::set<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(folder))
      if (file.path().extension() == ".yaml") files.insert(file.path());
    std::map<std::string, profile::Profiles> profiles;
    for (const auto& file : files) {
      const auto s = scenario::read(file.string());
      const auto& name = s.cluster.profile;
      if (!profiles.contains(name))
        profiles.emplace(name, profile::Profiles({profile::load(root + "/profiles/" + name + ".json", {"test", 0})}));
      validate::add(v, s, profiles.at(name));
    }
    return v;
  }();
  return validation;
}

}  // namespace

TEST_CASE("no run of pretrain_gpt.py is further off than it was") {
  std::map<std::string, double> reached;
  double sum = 0;
  for (const auto& c : all().cases) {
    reached[c.scenario.name] = 100 * std::abs(validate::time_error(c));
    sum += reached[c.scenario.name];
    double memory = 0;
    for (const auto& rank : validate::rank_errors(c)) memory = std::max(memory, 100 * std::abs(rank.error()));
    reached[c.scenario.name + ".peak"] = memory;
  }
  REQUIRE(all().cases.size() >= 20);
  reached["mean"] = sum / static_cast<double>(all().cases.size());
  test::check_bounds(folder + "bounds.txt", reached, slack);
}

TEST_CASE("the page names every run, and each says where its time comes from") {
  std::ifstream in(root + "/docs/real-runs.md");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (const auto& c : all().cases) {
    CAPTURE(c.scenario.name);
    CHECK_FALSE(c.scenario.measured->source.empty());
    CHECK(text.find("`" + c.scenario.name + "`") != std::string::npos);
  }
}
