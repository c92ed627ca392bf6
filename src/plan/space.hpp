// The space of candidates in two levels: structures (how the model is spread and scheduled) and, within one, the
// choices that only add work or move memory (recompute, offload, allocator). A structure without recompute and offload
// is a lower bound of the time of everything in it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "candidates.hpp"
#include "rules.hpp"

namespace pipewright::plan {

struct Structure {
  Scenario partial;
  std::vector<Value> chosen;
  std::string label;
  std::int64_t holds = 1;  ///< candidates in it, legal or not
};

class Space {
 public:
  Space(const Scenario& base, const std::vector<Dimension>& dimensions, LeftOut& left_out);

  /// All structures that Megatron Core can run; the others go to `rejected`.
  std::vector<Structure> structures();
  /// The legal candidates of a structure that are not equal to earlier ones.
  std::vector<Trial> candidates(const Structure& structure);
  /// The same in two steps: those that offload nothing, and what offload makes of one of them.
  std::vector<Trial> without_offload(const Structure& structure);
  std::vector<Trial> with_offload(const Structure& structure, const Trial& without);
  bool searches_offload() const { return offload_ < dimensions_.size(); }

  std::vector<Rejected> rejected;
  std::int64_t enumerated = 0, duplicates = 0;

 private:
  using Narrow = std::function<void(std::size_t dimension, std::vector<Value>& values)>;
  template <typename Sink>
  void decide(std::size_t depth, std::size_t until, const Scenario& partial, const std::vector<Value>& chosen,
              const Sink& sink, const Narrow& narrow = {});
  std::vector<Trial> narrowed(const Structure& structure, const Narrow& narrow);
  std::int64_t size_of(const Scenario& partial);
  std::optional<Trial> finished(const Scenario& decided, const std::vector<Value>& chosen);
  std::optional<Finding> refused(const Scenario& scenario, std::string& tolerated) const;

  const Scenario& base_;
  const std::vector<Dimension>& dimensions_;
  LeftOut& left_out_;
  std::size_t structural_ = 0;  ///< dimensions that make a structure
  std::size_t offload_ = 0;     ///< the dimension of that name, or none: their number
  std::map<std::string, std::int64_t> sizes_;
  std::vector<std::string_view> tolerated_;
  std::set<std::string> seen_;
};

std::string identity(const Scenario& scenario);
/// Equal for scenarios that differ in the allocator's configuration only.
std::string identity_of_time(Scenario scenario);
/// Without recompute and offload: nothing of the same structure is faster.
Scenario stripped(Scenario scenario);
/// Keeps the last assignment of every name, in the order of first mention.
void merge(Assignments& into, const Assignments& more);

}  // namespace pipewright::plan
