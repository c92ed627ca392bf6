#include "rounds.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <span>

namespace pipewright::memory {
namespace {

using schedule::Instruction;
using schedule::Kind;

/// By microbatch: how many of those from which on steps of pieces begin or cease to run, or other rows are drawn, came
/// before or with it.
std::vector<int> classes(const model::Stages& stages, int microbatches, int period, bool draws) {
  std::set<int> turns = {1};  // parameters are gathered for the first one
  const auto add = [&](const std::vector<model::Step>& steps) {
    for (const auto& step : steps) {
      if (step.from_microbatch > 0) turns.insert(step.from_microbatch);
      if (step.before_microbatch < microbatches) turns.insert(step.before_microbatch);
    }
  };
  if (draws)
    for (int round = 1; round <= drawn_rounds; ++round) turns.insert(round * period);
  for (const auto& piece : stages.pieces) {
    for (const auto* steps : {&piece.forward, &piece.backward, &piece.weight_gradient}) add(*steps);
    for (const auto& node : piece.nodes)
      for (const auto* steps : {&node.forward, &node.backward, &node.weight_gradient}) add(*steps);
  }
  std::vector<int> result;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch)
    result.push_back(static_cast<int>(std::distance(turns.begin(), turns.upper_bound(microbatch))));
  return result;
}

/// Passes of a microbatch through a chunk that an instruction names.
struct Uses {
  explicit Uses(const Instruction& i) {
    switch (i.kind) {
      case Kind::combined_begin:
        add(i.microbatch, i.chunk);
        add(i.backward_microbatch, i.backward_chunk);
        break;
      case Kind::forward:
      case Kind::backward:
      case Kind::node:
      case Kind::deallocate:
        add(i.microbatch, i.chunk);
        break;
      default:
        for (const auto& part : i.parts) add(part.microbatch, part.chunk);
    }
  }
  void add(int microbatch, int chunk) {
    if (microbatch != schedule::no_microbatch) calls[size++] = {microbatch, chunk};
  }
  std::span<const model::Call> all() const { return std::span(calls).first(size); }

  std::array<model::Call, 4> calls{};
  std::size_t size = 0;
};

/// Whether `b` does for microbatches `shift` later what `a` does.
bool alike(const Instruction& a, const Instruction& b, int shift, const std::vector<int>& classes) {
  // What begins and ends a step's share of gradients and parameters is of no microbatch and does not repeat.
  const bool once = a.kind == Kind::no_sync_enter || a.kind == Kind::no_sync_exit || a.kind == Kind::param_sync ||
                    a.kind == Kind::grad_sync;
  if (once || a.kind != b.kind || a.on_communication_stream != b.on_communication_stream) return false;
  const auto class_of = [&](int microbatch) { return classes[static_cast<std::size_t>(microbatch)]; };
  return (a.kind != Kind::node || a.node == b.node) &&
         std::ranges::equal(a.parts, b.parts, {}, &schedule::Part::type, &schedule::Part::type) &&
         std::ranges::equal(Uses(a).all(), Uses(b).all(), [&](const model::Call& one, const model::Call& other) {
           return one.microbatch + shift == other.microbatch && one.chunk == other.chunk &&
                  class_of(one.microbatch) == class_of(other.microbatch);
         });
}

}  // namespace

Rounds::Rounds(const model::Stages& stages, const schedule::Config& config, const schedule::RankProgram& program,
               std::size_t chunks, bool draws)
    : chunks_(chunks), shift_(schedule::period(config)) {
  const auto& instructions = program.instructions;
  first_use_.assign(chunks * static_cast<std::size_t>(config.microbatches), instructions.size());
  last_use_.assign(first_use_.size(), 0);
  for (std::size_t index = 0; index < instructions.size(); ++index) {
    const auto& i = instructions[index];
    const Uses uses(i);
    for (const model::Call& call : uses.all()) {
      const auto flight = static_cast<std::size_t>(call.microbatch) * chunks + static_cast<std::size_t>(call.chunk);
      first_use_[flight] = std::min(first_use_[flight], index);
      last_use_[flight] = index;
    }
    const bool forward =
        i.kind == Kind::forward || (i.kind == Kind::combined_begin && i.microbatch != schedule::no_microbatch);
    if (forward && i.chunk == 0 && i.microbatch % shift_ == 0) begins_.push_back(index);
  }
  begins_.push_back(instructions.size());
  const std::size_t rounds = begins_.size() - 1;
  const auto class_of = classes(stages, config.microbatches, shift_, draws);
  alike_until_.resize(rounds);
  for (std::size_t round = rounds; round-- > 0;) {
    const auto begin = instructions.begin() + static_cast<std::ptrdiff_t>(begins_[round]),
               end = instructions.begin() + static_cast<std::ptrdiff_t>(begins_[round + 1]);
    // The last one ends with the cool-down.
    const bool same =
        round + 2 < rounds && begins_[round + 2] - begins_[round + 1] == begins_[round + 1] - begins_[round] &&
        std::equal(begin, end, end,
                   [&](const Instruction& a, const Instruction& b) { return alike(a, b, shift_, class_of); });
    alike_until_[round] = same ? alike_until_[round + 1] : round + 1;
  }
}

std::optional<std::size_t> Rounds::at(std::size_t instruction) const {
  const auto found = std::ranges::lower_bound(begins_, instruction);
  if (found == begins_.end() || *found != instruction || found + 1 == begins_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - begins_.begin());
}

bool Rounds::same_in_use(std::size_t round, std::size_t later) const {
  const std::size_t shift = (later - round) * static_cast<std::size_t>(shift_) * chunks_;
  for (std::size_t flight = 0; flight < flights(); ++flight) {
    const bool then = flight >= shift && in_use(flight - shift, round);
    if (in_use(flight, later) != then) return false;
  }
  // None of the first round may be named beyond the last microbatch.
  for (std::size_t flight = flights() - std::min(shift, flights()); flight < flights(); ++flight)
    if (in_use(flight, round)) return false;
  return true;
}

}  // namespace pipewright::memory
