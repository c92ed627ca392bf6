// The space of candidates in two levels: structures (how the model is spread and scheduled) and, within one, the
// choices that only add work or move memory (recompute, offload, allocator). A structure without recompute and offload
// is a lower bound of the time of everything in it.
#pragma once

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
  std::optional<predict::Prediction> bound;  ///< of the structure without recompute and offload
  bool impossible = false;                   ///< even its state does not fit
};

class Space {
 public:
  Space(const Scenario& base, const std::vector<Dimension>& dimensions, LeftOut& left_out);

  /// All structures that Megatron Core can run; the others go to `rejected`.
  std::vector<Structure> structures();
  /// The legal candidates of a structure that are not equal to earlier ones.
  std::vector<Trial> candidates(const Structure& structure);

  std::vector<Rejected> rejected;
  std::int64_t enumerated = 0, duplicates = 0;

 private:
  template <typename Sink>
  void decide(std::size_t depth, std::size_t until, const Scenario& partial, const std::vector<Value>& chosen,
              const Sink& sink);
  std::optional<Trial> finished(const Scenario& decided, const std::vector<Value>& chosen);
  std::optional<Finding> refused(const Scenario& scenario, std::string& tolerated) const;

  const Scenario& base_;
  const std::vector<Dimension>& dimensions_;
  LeftOut& left_out_;
  std::size_t structural_ = 0;  ///< dimensions that make a structure
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
