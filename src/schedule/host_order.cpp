// Recording of a rank's instructions.
#include "host_order.hpp"

namespace pipewright::schedule {

Host::Host(const Config& config, Place place, RankProgram& program)
    : config_(config), place_(place), program_(program) {}

Instruction& Host::add(Kind kind) {
  Instruction& instruction = program_.instructions.emplace_back();
  instruction.kind = kind;
  instruction.on_communication_stream = on_communication_stream_;
  return instruction;
}

void Host::compute(Kind kind, Op op) {
  Instruction& instruction = add(kind);
  instruction.microbatch = op.microbatch;
  instruction.chunk = op.chunk;
}

void Host::combined(Op forward, Op backward) {
  compute(Kind::combined, forward);
  program_.instructions.back().backward_microbatch = backward.microbatch;
  program_.instructions.back().backward_chunk = backward.chunk;
}

void Host::combined_begin(std::optional<Op> forward, std::optional<Op> backward) {
  constexpr Op none{no_microbatch, 0};
  combined(forward.value_or(none), backward.value_or(none));
  program_.instructions.back().kind = Kind::combined_begin;
}

void Host::node(Op op, Node node, bool on_communication_stream) {
  compute(Kind::node, op);
  program_.instructions.back().node = node;
  program_.instructions.back().on_communication_stream = on_communication_stream;
}

void Host::communicate(Kind kind, const Transfers& t) {
  Parts parts;
  const auto issue = [&parts](const std::optional<Part>& part) {
    if (part) parts.push_back(*part);
  };
  if (config_.batched) {  // p2p_communication.py:17, the list given to batch_isend_irecv
    issue(t.send_prev), issue(t.recv_prev), issue(t.send_next), issue(t.recv_next);
  } else if (place_.rank % 2 == 0) {  // p2p_communication.py:55, isend and irecv by parity of the rank
    issue(t.send_next), issue(t.recv_prev), issue(t.send_prev), issue(t.recv_next);
  } else {
    issue(t.recv_prev), issue(t.send_next), issue(t.recv_next), issue(t.send_prev);
  }
  // A call without any part still synchronises the device when it is a batch (batch_p2p_sync), else it does nothing.
  if (!parts.empty() || config_.batched) add(kind).parts = parts;
}

void Host::wait(Part part) { add(Kind::wait).parts.push_back(part); }

void Host::deallocate(Op op) {
  if (config_.deallocate_outputs && !place_.last_stage(op)) compute(Kind::deallocate, op);
}

void Host::disable_grad_sync() {
  if (!no_sync_ && config_.overlap_grad_reduce) add(Kind::no_sync_enter);
  no_sync_ = true;
}

void Host::enable_grad_sync() {
  if (no_sync_ && config_.overlap_grad_reduce) add(Kind::no_sync_exit);
  no_sync_ = false;
}

}  // namespace pipewright::schedule
