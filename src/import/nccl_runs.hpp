// What the two forms of nccl-tests' output have in common: a program's run as it stands in the file.
#pragma once

#include <string>
#include <vector>

#include "pipewright/base.hpp"

namespace pipewright::nccl_tests {

struct Gpu {
  std::string group, host, device_name;
  std::int64_t device = 0;
};

struct Row {
  Position at;
  std::string key;  ///< of JSON, else empty
  std::int64_t bytes = 0;
  std::vector<double> us;     ///< out of place and in place, those that were measured
  std::vector<double> busbw;  ///< beside each
  double algbw = 0;           ///< of the first
};

struct Run {
  Position at;          ///< its head
  std::string program;  ///< as far as the output says
  std::vector<Gpu> gpus;
  std::vector<Row> rows;
  int iterations = 1;
  std::string nccl;
};

std::vector<Run> read_text(const std::string& path, const std::string& content);
Run read_json(const std::string& path, const std::string& content);

}  // namespace pipewright::nccl_tests
