// Numbers of any kind in any field of a scenario file, by the way that every command takes: read, checked against the
// rules, predicted. A prediction, a broken rule or a UsageError that says where, soon.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <sstream>
#include <tuple>

#include "../draws.hpp"
#include "../mutate.hpp"
#include "../predict/moves.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/scenario/fields.hpp"

namespace numbers_test {

using namespace pipewright;

namespace {

/// A scenario file with one field said as `value`, and that line's number.
std::pair<std::string, int> with_line(const std::string& file, const scenario::FieldInfo& field,
                                      const std::string& value) {
  const auto dot = field.name.find('.');
  const std::string first = field.name.substr(0, dot);
  std::istringstream lines(file);
  std::string text, line, inside;
  int number = 0, found = 0;
  bool dropping = false;  // what was said of the field, or of the map that it stands in
  const auto put = [&](const std::string& one) { text += one + '\n', ++number; };
  const auto state = [&] {
    if (dot != std::string::npos) put("  " + first + ":");
    put((dot == std::string::npos ? "  " : "    ") + field.name.substr(dot + 1) + ": " + value);
    found = number;
  };
  while (std::getline(lines, line)) {
    if (!line.starts_with(' ')) inside = line.substr(0, line.find(':'));
    if (dropping && line.starts_with("    ")) continue;
    dropping = inside == field.section && line.starts_with("  " + first + ":");
    if (dropping) continue;
    put(line);
    if (line == field.section + ":") state();
  }
  if (found == 0) {
    put(field.section + ":");
    state();
  }
  return {text, found};
}

/// Numbers of every size, borders of types and of lists, and what is none.
std::string any_number(test::Mutator& random) {
  static const auto strange = [] {
    std::istringstream all(
        "0|-1|1|2|3|5|7|0.1|-0.5|1.5|4097|65537|1000003|1e6|1e308|-1e308|1e400|nan|.nan|inf|-.inf|9223372036854775807|"
        "-9223372036854775808|9223372036854775808|017|0x10|1_000|true|none|''|'8'|[]|[0]|[-1]|[1, 1]|[3, "
        "1000003]|[1.5]|"
        "{}|{a: 1}|8 GiB|-8GiB|80GB|2^62|--1|1,000");
    std::vector<std::string> words;
    for (std::string word; std::getline(all, word, '|');) words.push_back(word);
    return words;
  }();
  if (random.below(2) == 0) return strange[random.below(strange.size())];
  const auto bits = static_cast<unsigned>(random.below(40));
  const auto size = (std::int64_t{1} << bits) + static_cast<std::int64_t>(random.below(std::size_t{1} << bits));
  return std::to_string(random.below(8) == 0 ? -size : size);
}

bool is_violation(const plan::Finding& finding) { return finding.severity == plan::Severity::violation; }

}  // namespace

TEST_CASE("a number of any kind in any field is computed with, or refused by file, line and key") {
  const profile::Profiles profiles({profile::load(std::string(SOURCE_ROOT) + "/profiles/h200-sxm.json", {})});
  std::vector<scenario::FieldInfo> numeric;
  for (const auto& field : scenario::fields())
    if (field.section != "software" && field.type.find("string") == std::string::npos &&
        field.type.find("bool") == std::string::npos)
      numeric.push_back(field);
  REQUIRE(numeric.size() > 100);
  // Settings beside which each field counts, as far as there are some.
  std::map<std::string, std::vector<const scenario::Move*>> places;
  for (const auto& move : scenario::moves()) places[move.name].push_back(&move);
  const char* const bases[] = {"dense", "moe", "tensor", "single", "mla", "combined"};
  int predicted = 0, refused = 0, read = 0;
  const unsigned rounds = test::draws(static_cast<unsigned>(2 * numeric.size()), "PIPEWRIGHT_NUMBERS");
  for (unsigned round = 0; round < rounds; ++round) {
    test::Mutator random(round);
    const auto& field = numeric[round % numeric.size()];
    std::string value;
    const auto& known = places[field.name];
    const scenario::Move* place = known.empty() ? nullptr : known[random.below(known.size())];
    auto s = test::base_of(place != nullptr ? place->base : bases[random.below(std::size(bases))]);
    if (place != nullptr) test::change(s, place->setup);
    std::string text = scenario::write(s);
    for (std::size_t others = random.below(2) * random.below(3); others > 0; --others)  // beside it
      text = with_line(text, numeric[random.below(numeric.size())], std::to_string(1 + random.below(16))).first;
    int line = 0;
    std::tie(text, line) = with_line(text, field, value = any_number(random));
    CAPTURE(round);
    CAPTURE(text);
    CAPTURE(field.name);
    CAPTURE(value);
    const auto begin = std::clock();
    try {
      s = scenario::parse(text, "drawn.yaml");
      ++read;
      CHECK(scenario::parse(scenario::write(s), "drawn.yaml") == s);
      if (std::ranges::any_of(plan::check(s), is_violation)) {
        ++refused;
        continue;
      }
      const auto prediction = predict::predict(s, profiles);
      CHECK(prediction.step_ns > 0);
      CHECK(std::isfinite(prediction.tflops_per_gpu));
      CHECK(prediction.interval_low_ns >= 0);
      CHECK(prediction.interval_high_ns >= prediction.step_ns);
      for (const auto& rank : prediction.ranks) {
        CHECK(rank.walk.static_bytes.value > 0);
        CHECK(rank.walk.peak_allocated >= rank.walk.static_bytes);
      }
      ++predicted;
    } catch (const UsageError& error) {
      const std::string what = error.what();
      CAPTURE(what);
      CHECK(error.where().file == "drawn.yaml");
      CHECK(!error.key().empty());
      // What is no number of the field is told where it stands; what others make of it, at one of them.
      const bool of_field = error.key() == field.name || error.key() == field.section + "." + field.name;
      if (of_field) CHECK(error.where().line == line);
      if (what.find("out of range") != std::string::npos) CHECK(!error.allowed().empty());
      ++refused;
    } catch (const std::exception& error) {
      FAIL_CHECK(std::string(error.what()));
    }
    CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < (test::sanitized() ? 5 : 1) * 60);
  }
  CHECK(10 * predicted > static_cast<int>(rounds));
  CHECK(10 * refused > static_cast<int>(rounds));
  CHECK(read > predicted);
}

TEST_CASE("heads of any width are refused where no fused kernel takes them, and only there") {
  for (const char* base : {"dense", "moe", "tensor", "single"})
    for (scenario::Int width = 1; width < 600; width += 1 + width / 40) {
      CAPTURE(std::string(base));
      CAPTURE(width);
      auto s = test::base_of(base);
      s.model.kv_channels = width;
      const auto refused = [&] {
        const auto all = scenario::unmodelled(s);
        return std::ranges::any_of(all, [](const auto& one) { return one.name == "kv_channels"; });
      };
      CHECK(refused() == (width > 256 || width % 8 != 0));
      s.settings.attention_backend = "unfused";
      CHECK(!refused());
    }
}

}  // namespace numbers_test
