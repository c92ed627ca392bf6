// read(write(s)) == s for any scenario that the table can express.
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdio>

#include "field_rows.hpp"
#include "lengths.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/scenario/yaml_value.hpp"

namespace property_test {

using namespace pipewright;
using namespace pipewright::scenario;

namespace {

std::string random_text() {
  // What YAML treats specially, what must be escaped, and letters.
  static const std::string letters = "abz XYZ019_.-+/:,#'\"{}[]&*!|>%@`~?\\\n\t=()";
  return *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::elementOf(letters)));
}

double random_double(double low, double high) {
  const int kind = *rc::gen::inRange(0, 4);
  if (kind == 0) return low;
  if (kind == 1) return high;
  return low + (high - low) * (*rc::gen::inRange(0, 1'000'000) / 1e6) / (kind == 2 ? 1 : 1e6);
}

template <class T>
T random_scalar(const Field& field) {
  if constexpr (std::is_same_v<T, bool>) {
    return *rc::gen::arbitrary<bool>();
  } else if constexpr (std::is_same_v<T, Int>) {
    return *rc::gen::inRange(static_cast<Int>(field.low), static_cast<Int>(field.high));
  } else if constexpr (std::is_same_v<T, double>) {
    return random_double(field.low, field.high);
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return Bytes(*rc::gen::inRange<Int>(1, Int{1} << 50));
  } else {
    return field.allowed.empty() ? random_text() : *rc::gen::elementOf(field.allowed);
  }
}

template <class T>
void randomise(T& value, const Field& field) {
  value = random_scalar<T>(field);
}
template <class T>
void randomise(std::optional<T>& value, const Field& field) {
  value = *rc::gen::inRange(0, 4) == 0 ? std::optional<T>() : random_scalar<T>(field);
}
template <class T>
void randomise(std::vector<T>& value, const Field& field) {
  value.clear();
  for (int n = *rc::gen::inRange(0, 4); n > 0; --n) value.push_back(random_scalar<T>(field));
}
/// Rows and how many of each.
Strings random_lengths() {
  Strings written;
  for (int n = *rc::gen::inRange(0, 4); n > 0; --n) {
    std::string row;
    for (int i = *rc::gen::inRange(1, 4); i > 0; --i)
      row += (row.empty() ? "" : "+") + std::to_string(*rc::gen::inRange(1, 100'000));
    written.push_back(row + "*" + std::to_string(*rc::gen::inRange(1, 1000)));
  }
  return read_lengths(written, {}, "sequence_lengths");
}

std::string random_name() { return "V" + std::to_string(*rc::gen::inRange(0, 1000)); }

Measured random_measured() {
  const Field any{"", "", nullptr, ""};
  Measured m;
  m.forward_backward_ms = random_double(0, 1e5);
  m.samples_ms = {random_double(0, 1e5), random_double(0, 1e5)};
  randomise(m.optimizer_ms, any);
  if (*rc::gen::arbitrary<bool>()) {  // published figures beside one's own
    m.forward_backward_ms += 1;
    m.step_ms = random_double(1, 1e5);
    m.source = random_name();
    m.peak_allocated_bytes_by_rank[3] = Bytes(12345);
    m.peak_reserved_bytes_by_rank[3] = Bytes(23456);
    m.outside_allocator_bytes_by_rank[2] = Bytes(34567);
  }
  for (int n = *rc::gen::inRange(0, 3); n > 0; --n) {
    MeasuredRank rank;
    randomise(rank.parameters, any);
    randomise(rank.static_bytes, any);
    randomise(rank.outside_allocator_bytes, any);
    randomise(rank.sm_clock_mhz, any);
    if (*rc::gen::arbitrary<bool>())
      rank.trace_summary = TraceSummary{random_double(0, 1e9), {{"comp", 1.5}}, {{"p2p", 0.0}}};
    m.ranks.push_back(rank);
  }
  return m;
}

/// Words that mean something to YAML, numbers, lists of those, and what is nearly one.
std::string random_value() {
  static const Strings words = {"8",    "0.5",  "1e5",   "017", "true",    "none", "null", "NULL",       "nUll",
                                "~",    "yes",  "0.19.", ".5",  "-1",      "+1",   "mlp",  "moe_act",    "E|t*3|L",
                                "a: b", "a #b", "p2p",   "[]",  "a2a+p2p", "'8'",  "",     "all_gather", "&a"};
  const auto word = [] { return *rc::gen::inRange(0, 4) == 0 ? random_text() : *rc::gen::elementOf(words); };
  if (*rc::gen::arbitrary<bool>()) return word();
  std::string list;
  const std::string between = *rc::gen::elementOf(Strings{", ", ",", " ,", ",  "});
  for (int n = *rc::gen::inRange(0, 4); n > 0; --n) list += (list.empty() ? "" : between) + word();
  return "[" + list + *rc::gen::elementOf(Strings{"", "", "", between, " "}) + "]";
}

bool same_value(const Value& a, const Value& b) {
  const auto same_entry = [](const auto& one, const auto& other) {
    return one.key == other.key && same_value(one.value, other.value);
  };
  return a.kind == b.kind && a.quoted == b.quoted && a.text == b.text && a.line == b.line &&
         std::ranges::equal(a.items, b.items, same_value) && std::ranges::equal(a.entries, b.entries, same_entry);
}

Scenario random_scenario() {
  Software software;
  software.megatron_core = *rc::gen::elementOf(Strings{"0.16.0", "0.19.1", "pr-4268", "main"});
  Scenario s = defaults(software);
  for (const Field& field : table()) {
    bool required = false;
    for (const auto& [section, name] : required_fields) required = required || field.name == std::string_view(name);
    if (std::string_view(field.section) == "software" || (!required && *rc::gen::inRange(0, 4) != 0)) continue;
    if (field.name == std::string_view("sequence_lengths"))
      s.settings.sequence_lengths = random_lengths();
    else
      std::visit([&](auto* member) { randomise(*member, field); }, field.member(s));
  }
  // Two spellings of one value.
  auto& graphed = s.settings.cuda_graph_modules;
  if (s.settings.cuda_graph_impl == "local") std::erase(graphed, "full_iteration");
  if (graphed == Strings{"full"}) graphed.clear();
  for (int n = *rc::gen::inRange(0, 4); n > 0; --n) s.environment[random_name()] = random_text();
  for (int n = *rc::gen::inRange(0, 3); n > 0; --n)
    s.cluster.overrides["host." + random_name()] = random_double(0, 1e9);
  if (*rc::gen::arbitrary<bool>()) s.search.memory_margin = Margin{Bytes(*rc::gen::inRange<Int>(1, 1'000'000'000)), 0};
  if (*rc::gen::arbitrary<bool>()) s.search.values["micro_batch_size"] = {"1", "2"};
  if (*rc::gen::arbitrary<bool>()) s.settings.other["lr"] = "0.001";
  if (*rc::gen::arbitrary<bool>()) s.measured = random_measured();
  return s;
}

}  // namespace

TEST_CASE("a written scenario is read as it was") {
  CHECK(rc::check([] {
    const Scenario s = random_scenario();
    const std::string text = write(s);
    RC_TAG(text.size() > 4000 ? "long" : "short");
    RC_ASSERT(parse(text, "written.yaml") == s);
    RC_ASSERT(write(parse(text, "written.yaml")) == text);
  }));
}

TEST_CASE("--set reads what get gives") {
  CHECK(rc::check([] {
    const Scenario s = random_scenario();
    Scenario copy = defaults(s.software);
    for (const Field& field : table()) {
      if (std::string_view(field.section) == "software") continue;
      const std::string name = std::string(field.section) + "." + field.name;
      if (same(field, s, copy)) continue;
      RC_LOG() << name << "=" << get(s, name) << "\n";
      set(copy, name + "=" + get(s, name));
      RC_ASSERT(same(field, s, copy));
    }
  }));
}

TEST_CASE("a setting is what YAML says that it is") {
  CHECK(rc::check([] {
    const std::string text = random_value();
    Value parsed;
    try {
      const Value root = parse_yaml("value: " + text, "written.yaml");
      RC_PRE(root.kind == Value::Kind::map && root.entries.size() == 1);
      parsed = root.entries.front().value;
    } catch (const UsageError&) {
      RC_DISCARD("no YAML");
    }
    const bool inner_list = text.find(',') != std::string::npos && text.find_first_of("[{\"'|(") == std::string::npos;
    RC_PRE(!text.empty() && !inner_list);
    RC_ASSERT(same_value(parse_setting(text, "key", "--set"), parsed));
  }));
}

}  // namespace property_test
