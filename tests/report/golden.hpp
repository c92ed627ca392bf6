// Golden files: data/NAME holds what a report must print. PIPEWRIGHT_ACCEPT=1 writes what is printed now and ends the
// test as skipped (status 77), so that nobody accepts and passes in one go.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "pipewright/base.hpp"

namespace pipewright::report {

inline void check_golden(const std::string& name, const std::string& actual) {
  const char* folder = std::getenv("PIPEWRIGHT_TEST_DATA");
  REQUIRE(folder != nullptr);
  const std::string path = std::string(folder) + "/" + name;
  if (std::getenv("PIPEWRIGHT_ACCEPT") != nullptr) {
    write_file(path, actual);
    static const int registered = std::atexit([] { std::_Exit(77); });
    static_cast<void>(registered);
    return;
  }
  CHECK(actual == read_file(path));
}

}  // namespace pipewright::report
