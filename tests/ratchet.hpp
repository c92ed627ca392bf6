// Errors that may only fall: what was reached is kept beside the runs, in percent, a name and a number a line.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace pipewright::test {

/// `slack`, points: what a change elsewhere may move a run. A share ("share_within_2") may only rise. Every bound must
/// be reached again: a run that was predicted stays so. With PIPEWRIGHT_ACCEPT the file is written anew instead.
inline void check_bounds(const std::string& file, const std::map<std::string, double>& reached, double slack) {
  if (std::getenv("PIPEWRIGHT_ACCEPT") != nullptr) {
    std::ofstream out(file);
    for (const auto& [name, percent] : reached) out << name << ' ' << std::round(100 * percent) / 100 << '\n';
    MESSAGE("bounds.txt was written: look at its difference");
    return;
  }
  std::map<std::string, double> bounds;
  std::ifstream in(file);
  std::string name;
  for (double percent = 0; in >> name >> percent;) bounds[name] = percent;
  for (const auto& [what, bound] : bounds) {
    CAPTURE(what);
    CHECK(reached.contains(what));
  }
  for (const auto& [what, percent] : reached) {
    CAPTURE(what);
    REQUIRE(bounds.contains(what));
    if (what.find("share_within") != std::string::npos)
      CHECK(percent >= bounds.at(what) - slack);
    else
      CHECK(percent <= bounds.at(what) + slack);
  }
}

}  // namespace pipewright::test
