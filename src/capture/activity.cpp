#include "activity.hpp"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

namespace pipewright::capture {

std::map<std::uint64_t, Span> spans(const Batch& batch) {
  if (batch.dropped > 0) {
    throw std::runtime_error("CUPTI dropped " + std::to_string(batch.dropped) + " records; timings would be wrong");
  }
  std::unordered_map<std::uint32_t, std::uint64_t> ids;
  ids.reserve(batch.tags.size());
  std::map<std::uint64_t, Span> result;
  for (const Tag& tag : batch.tags) {
    ids[tag.correlation] = tag.id;
    result.try_emplace(tag.id);
  }
  for (const Activity& a : batch.activities) {
    const auto tag = ids.find(a.correlation);
    if (tag == ids.end()) continue;  // of work beside it, perhaps still running
    if (a.end_ns < a.start_ns) throw std::runtime_error("CUPTI record of " + a.name + " ends before it starts");
    Span& span = result[tag->second];
    span.start_ns = span.activities == 0 ? a.start_ns : std::min(span.start_ns, a.start_ns);
    span.end_ns = std::max(span.end_ns, a.end_ns);
    span.busy_ns += a.end_ns - a.start_ns;
    ++span.activities;
  }
  for (const auto& [id, span] : result) {
    if (span.activities == 0) throw std::runtime_error("CUPTI has no record for launch " + std::to_string(id));
  }
  return result;
}

}  // namespace pipewright::capture
