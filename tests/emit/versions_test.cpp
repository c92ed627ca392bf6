// What is printed parses in the real versions: flags, their values and Bridge's fields against lists that were
// generated from the sources (data/), and back again as the scenario it came from, for any legal scenario.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "../../src/emit/emitted.hpp"
#include "../../src/emit/field_table.hpp"
#include "../plan/bases.hpp"
#include "changes.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace versions_test {

using namespace pipewright;

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

std::vector<std::string> lines(const char* file) {
  const auto content = read_file(std::string(std::getenv("PIPEWRIGHT_TEST_DATA")) + "/" + file);
  auto all = split(content, '\n');
  std::erase_if(all, [](const auto& line) { return line.empty() || line[0] == '#'; });
  return all;
}

/// version -> flag -> allowed values (empty: any)
using Flags = std::map<std::string, std::map<std::string, std::set<std::string>>>;
const Flags& real_flags() {
  static const Flags all = [] {
    Flags flags;
    for (const auto& line : lines("flags.txt")) {
      const auto parts = split(line, ' ');
      for (const auto& version : split(parts[1], ',')) {
        auto& allowed = flags[version][parts[0]];
        if (parts.size() > 2)
          for (const auto& value : split(parts[2], ',')) allowed.insert(value);
      }
    }
    return flags;
  }();
  return all;
}

const std::set<std::string>& bridge_fields() {
  static const auto all = [] {
    const auto list = lines("bridge_fields.txt");
    return std::set<std::string>(list.begin(), list.end());
  }();
  return all;
}

scenario::Scenario random_scenario() {
  const auto base = *rc::gen::elementOf(std::vector<std::string>{"dense", "tensor", "single", "moe", "moe", "mla"});
  std::string chosen = base == "mla" ? test::mla : "";
  const int count = *rc::gen::inRange(0, 6);
  for (int i = 0; i < count; ++i)
    chosen += (chosen.empty() ? "" : "; ") + std::string(*rc::gen::elementOf(test::changes));
  auto s = test::scenario(base == "mla" ? "moe" : base, chosen);
  scenario::set(s, "megatron_core=" + *rc::gen::elementOf(scenario::stated_names(scenario::all_versions)));
  if (*rc::gen::inRange(0, 3) == 0)
    for (const auto& row : emit::carried())
      if (*rc::gen::arbitrary<bool>())
        scenario::set(s, "model." + std::string(row.field) + (row.field == "rope_scaling" ? "=true" : "=4"));
  return s;
}

int megatron_checked = 0;

void flags_parse(const scenario::Scenario& s) {
  const auto& real = real_flags().at(s.software.megatron_core);
  const std::set<std::string>* allowed = nullptr;
  for (const auto& word : emit::words(emit::megatron(s))) {
    if (word.starts_with("--")) {
      const auto known = real.find(word);
      const auto* other = emit::find_other_flag(word);  // carried
      RC_LOG() << word << " in " << s.software.megatron_core << "\n";
      RC_ASSERT(known != real.end() || (other != nullptr && emit::has(other->versions, s.software)));
      allowed = known != real.end() ? &known->second : nullptr;
    } else if (allowed != nullptr && !allowed->empty()) {
      RC_LOG() << word << "\n";
      RC_ASSERT(allowed->contains(word));
    }
  }
}

}  // namespace

TEST_CASE("Megatron flags exist in their version, take those values, and read back as the scenario") {
  CHECK(rc::check([] {
    const auto s = random_scenario();
    RC_PRE(test::legal(s));
    ++megatron_checked;
    RC_LOG() << scenario::write(s) << "\n";
    flags_parse(s);
    std::string line;
    for (const auto& word : emit::words(emit::megatron(s))) line += emit::quoted(word) + " ";
    const auto back = emit::from_megatron(line, machine_of(s));
    RC_ASSERT(back.findings.empty());
    RC_ASSERT(unsaid_differences(s, back.scenario, emit::megatron(s)) == std::string());
  }));
  CHECK(megatron_checked >= 50);
}

TEST_CASE("Bridge overrides name real fields and read back as the scenario") {
  CHECK(rc::check([] {
    const auto s = random_scenario();
    RC_PRE(test::legal(s));
    RC_LOG() << scenario::write(s) << "\n";
    std::string text;
    for (const auto& word : emit::words(emit::bridge(s))) {
      text += word + "\n";
      if (!word.starts_with("cfg.") || word.find(" = ") == std::string::npos) continue;
      const auto name = word.substr(4, word.find(" = ") - 4);
      RC_LOG() << name << "\n";
      // The pull request's own fields are there once Bridge's Megatron Core is that ref.
      const bool pull_request = s.software.megatron_core == "pr-4268" && name.starts_with("model.overlap_p2p_");
      RC_ASSERT(bridge_fields().contains(name) || name.find('.') == std::string::npos || pull_request);
    }
    const auto back = emit::from_bridge_text(text, "overrides", machine_of(s));
    RC_ASSERT(unsaid_differences(s, back.scenario, emit::bridge(s)) == std::string());
  }));
}

TEST_CASE("harness options exist") {
  CHECK(rc::check([] {
    const auto s = random_scenario();
    RC_PRE(test::legal(s));
    const auto& real = real_flags().at("harness");
    for (const auto& word : emit::words(emit::harness(s)))
      if (word.starts_with("-") && word.size() > 1 && (word[1] < '0' || word[1] > '9')) {
        RC_LOG() << word << "\n";
        RC_ASSERT(real.contains(word));
      }
  }));
}

}  // namespace versions_test
