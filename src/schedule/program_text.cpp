// The text form of instructions, see SYNTAX.md.
#include <fmt/format.h>

#include <string_view>

#include "pipewright/schedule.hpp"

namespace pipewright::schedule {
namespace {

constexpr std::string_view part_names[] = {"sn", "rp", "sp", "rn"};
constexpr std::string_view node_names[] = {"embed",       "pre_dispatch_computation", "moe_dispatch", "mlp",
                                           "moe_combine", "mtp_post_process",         "logits",       "loss"};

std::string part(const Part& p) {
  return fmt::format("{}{}.{}", part_names[static_cast<std::size_t>(p.type)], p.microbatch, p.chunk);
}

std::string call(char letter, const Parts& parts) {
  std::string out{letter, '['};
  for (const Part& p : parts) {
    if (&p != parts.begin()) out += ' ';
    out += part(p);
  }
  return out + ']';
}

std::string combined(const Instruction& i) {
  const bool forward = i.microbatch != no_microbatch, backward = i.backward_microbatch != no_microbatch;
  std::string out;
  if (forward) out = fmt::format("F{}.{}", i.microbatch, i.chunk);
  if (forward && backward) out += '|';
  if (backward) out += fmt::format("B{}.{}", i.backward_microbatch, i.backward_chunk);
  return out;
}

std::string node(const Instruction& i) {
  std::string out = fmt::format("{}{}.{}:", "fbw"[static_cast<std::size_t>(i.node.pass)], i.microbatch, i.chunk);
  if (i.node.layer >= 0) out += fmt::format("{}:", i.node.layer);
  return out += node_names[static_cast<std::size_t>(i.node.name)];
}

std::string text(const Instruction& i) {
  switch (i.kind) {
    case Kind::forward:
      return fmt::format("F{}.{}", i.microbatch, i.chunk);
    case Kind::backward:
      return fmt::format("B{}.{}", i.microbatch, i.chunk);
    case Kind::combined:
      return combined(i);
    case Kind::combined_begin:
      return '{' + combined(i);
    case Kind::combined_end:
      return "}";
    case Kind::node:
      return node(i);
    case Kind::p2p_sync:
      return call('S', i.parts);
    case Kind::p2p_async:
      return call('A', i.parts);
    case Kind::wait:
      return 'W' + part(i.parts.front());
    case Kind::deallocate:
      return fmt::format("D{}.{}", i.microbatch, i.chunk);
    case Kind::no_sync_enter:
      return "nosync+";
    case Kind::no_sync_exit:
      return "nosync-";
    case Kind::param_sync:
      return fmt::format("PG{}", i.chunk);
    case Kind::grad_sync:
      return fmt::format("RS{}", i.chunk);
  }
  return {};
}

bool is_hook(Kind kind) { return kind >= Kind::no_sync_enter; }

}  // namespace

std::vector<std::string> text(const RankProgram& rank, bool hooks, bool frees) {
  std::vector<std::string> words;
  words.reserve(rank.instructions.size());
  for (const Instruction& i : rank.instructions) {
    if ((is_hook(i.kind) && !hooks) || (i.kind == Kind::deallocate && !frees)) continue;
    words.push_back(text(i));
    if (i.on_communication_stream) words.back() += "@c";
  }
  return words;
}

}  // namespace pipewright::schedule
