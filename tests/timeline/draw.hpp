// A timeline as text: a letter a microsecond, the first of the kernel's name; '.' where the stream is idle.
#pragma once

#include <string>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline::test {

inline std::string draw(const Result& result, const model::Stages& stages, int rank, Lane lane) {
  std::string text;
  for (std::size_t node = 0; node < result.graph.size(); ++node) {
    const Label& label = result.graph.labels[node];
    if (label.rank != rank || label.lane != lane || result.times.end[node] == result.times.start[node]) continue;
    const auto* kernel = kernel_of(stages, label);
    const char letter = kernel ? kernel->name.front() : sends(label.part().type) ? '>' : '<';
    text.resize(std::max(text.size(), static_cast<std::size_t>(result.times.end[node] / 1000)), '.');
    for (auto t = result.times.start[node] / 1000; t < result.times.end[node] / 1000; ++t)
      text[static_cast<std::size_t>(t)] = letter;
  }
  return text;
}

}  // namespace pipewright::timeline::test
