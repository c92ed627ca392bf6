// Broken input. Every file of broken/ has the error that expected.txt gives ("NAME: ERROR" a line); and whatever is
// done to a good file, it is either read or refused by a UsageError.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace broken_test {

using namespace pipewright;
using namespace pipewright::scenario;

namespace {

std::string first_error(const std::string& path) {
  try {
    check(read(path));
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

// Reads, checks and writes; true if the text is a scenario. Anything but a UsageError escapes and fails the test.
bool survives(const std::string& text) {
  Scenario s;
  try {
    s = parse(text, "mutant.yaml");
  } catch (const UsageError& e) {
    const std::string_view what = e.what();
    REQUIRE(what.find('\n') == std::string_view::npos);
    REQUIRE(what.size() < 4000);
    return false;
  }
  const std::string written = write(s);
  CAPTURE(written);
  REQUIRE(parse(written, "written") == s);
  try {
    check(s);
  } catch (const UsageError&) {
    return true;
  }
  const Int p = s.settings.pipeline_model_parallel_size;
  if (p * num_chunks(s) <= 1000) {
    for (Int rank = 0; rank < p; ++rank) stage(s, rank, num_chunks(s) - 1);
  }
  return true;
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const char* name : {"a_pp4v2_m8_fp8cs", "e_off_moe_act", "w_off4"}) {
    texts.push_back(read_file(std::string("../measured/") + name + ".yaml"));
  }
  texts.push_back(read_file("../../scenarios/llama3-70b-sft-32xh100.yaml"));
  return texts;
}

}  // namespace

TEST_CASE("broken files") {
  std::map<std::string, std::string> expected;
  std::ifstream table("broken/expected.txt");
  for (std::string line; std::getline(table, line);) {
    const std::size_t colon = line.find(": ");
    REQUIRE(colon != std::string::npos);
    expected[line.substr(0, colon)] = line.substr(colon + 2);
  }
  CHECK(expected.size() >= 100);
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("broken")) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string name = entry.path().stem();
    CAPTURE(name);
    REQUIRE(expected.contains(name));
    std::string told = first_error(entry.path());
    if (name == "alias" && told.ends_with(": base")) told.resize(told.size() - 6);  // yaml-cpp 0.8 names the anchor
    CHECK(told == expected[name]);
    found.insert(name);
  }
  CHECK(found.size() == expected.size());
}

TEST_CASE("not a file") {
  CHECK(first_error("broken") == "broken: cannot read: this is a directory");
  CHECK(first_error("broken/none.yaml") == "broken/none.yaml: cannot read: no such file");
  CHECK(first_error("") == "cannot read: no such file");
}

TEST_CASE("a large text is refused before it is parsed") {
  CHECK_FALSE(survives(std::string(5U << 20U, '#')));
  CHECK_FALSE(survives("scenario: 1\n" + std::string(1'000'000, '{')));
  CHECK_FALSE(survives("scenario: 1\nmodel: " + std::string(100'000, '-')));
  CHECK_FALSE(survives("scenario: 1\nmodel:\n" + std::string(1'000'000, ' ') + "a"));
}

TEST_CASE("mutated bytes: read or refused, never a crash") {
  const std::string special = "{}[]:,#'\"\n\t -?&*!|>%@`~0189.eE\\\xff\xc3";
  int read = 0, refused = 0;
  for (const std::string& seed : seeds()) {
    for (unsigned round = 0; round < 200; ++round) {
      std::mt19937 random(round);
      const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
      std::string text = seed;
      for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
        const std::size_t at = below(text.size());
        switch (below(5)) {
          case 0:
            text[at] = static_cast<char>(random() & 0xFFU);
            break;
          case 1:
            text[at] = special[below(special.size())];
            break;
          case 2:
            text.insert(at, 1, special[below(special.size())]);
            break;
          case 3:
            text.erase(at, 1 + below(20));
            break;
          default:
            text.insert(below(text.size()), text.substr(at, 1 + below(60)));
            break;
        }
      }
      CAPTURE(text);
      (survives(text) ? read : refused) += 1;
    }
  }
  CHECK(read > 20);  // both outcomes occur, or the mutations test nothing
  CHECK(refused > 200);
}

TEST_CASE("mutated settings: any value for any field is taken or refused") {
  const std::vector<std::string> values = {"0",
                                           "1",
                                           "-1",
                                           "4611686018427387904",
                                           "9223372036854775807",
                                           "1e308",
                                           "-0.0",
                                           "true",
                                           "none",
                                           "auto",
                                           "[]",
                                           "[1, 2]",
                                           "{}",
                                           "''",
                                           "[none]",
                                           "selective",
                                           "1e-320",
                                           "~",
                                           "([0]*4)",
                                           "E|t|L",
                                           "\xF0\x9F\x98\x80",
                                           "a: b",
                                           "99999999",
                                           "2GiB",
                                           "7%"};
  const Scenario good = read("../measured/e_base.yaml");
  for (const FieldInfo& field : fields()) {
    for (const std::string& value : values) {
      Scenario s = good;
      const std::string name = field.section + "." + field.name;
      CAPTURE(name + "=" + value);
      try {
        set(s, name + "=" + value);
      } catch (const UsageError&) {
        continue;
      }
      REQUIRE(parse(write(s), "written") == s);
      try {
        check(s);
      } catch (const UsageError&) {
      }
    }
  }
}

}  // namespace broken_test
