// A host following its program, see host.hpp. Sources: schedules.py, combined_1f1b.py and
// model_chunk_schedule_plan.py of Megatron core_r0.19.0; batch_p2p_comm with batch_p2p_sync synchronises device and
// host after every call (p2p_communication.py:421-424).
#include "host_clock.hpp"

#include <algorithm>

namespace pipewright::timeline {
namespace {

using model::Step;
constexpr std::size_t forward_chain = 0, backward_chain = 1;

std::size_t chain_of(const schedule::Part& part) { return goes_forward(part.type) ? forward_chain : backward_chain; }

}  // namespace

Joins::Joins(const model::Stages& stages) {
  const auto joint = [](const std::vector<model::Kernel>& kernels) {
    return static_cast<std::size_t>(
        std::count_if(kernels.begin(), kernels.end(), [](const model::Kernel& k) { return k.joins_pipeline; }));
  };
  for (const model::Rank& rank : stages.ranks) {
    count_[1].push_back(joint(rank.finalize));
    count_[2].push_back(joint(rank.optimizer));
  }
  for (const std::size_t phase : {1U, 2U})
    arrivals_[phase].assign(*std::max_element(count_[phase].begin(), count_[phase].end()),
                            std::vector<Handle>(stages.ranks.size(), Weaver::none));
}

std::vector<Handle> Joins::arrive(Weaver& weaver, int rank, std::uint8_t phase, std::size_t ordinal, Handle arrival) {
  std::vector<Handle>& all = arrivals_[phase].at(ordinal);
  std::vector<Handle> others;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (r == static_cast<std::size_t>(rank) || count_[phase][r] <= ordinal) continue;
    if (all[r] == Weaver::none) all[r] = weaver.promise();
    others.push_back(all[r]);
  }
  Handle& own = all[static_cast<std::size_t>(rank)];
  if (own != Weaver::none) weaver.fulfil(own, arrival);
  own = arrival;
  return others;
}

Host::Host(const Shared& shared, int rank)
    : shared_(shared),
      rank_(rank),
      program_(shared.program.ranks[static_cast<std::size_t>(rank)].instructions),
      model_(shared.stages.ranks[static_cast<std::size_t>(rank)]),
      streams_(shared.weaver, rank, shared.synchronize),
      offload_(offload::resolve(shared.scenario, shared.stages, shared.program, rank), shared.stages, shared.prices,
               shared.gap),
      follower_(shared.stages, shared.program, rank, *this) {
  chain_.fill(Weaver::none);
  const auto r = static_cast<std::size_t>(rank);
  const auto priced = [&](const std::vector<model::Kernel>& kernels, const Prices::List& prices,
                          std::uint32_t chunk = 0) { return timeline::lines_of(kernels, prices, shared_.gap, chunk); };
  for (std::uint32_t c = 0; c < model_.chunks.size(); ++c) {
    const model::Chunk& chunk = model_.chunks[c];
    chunks_.push_back({priced(chunk.gradient_sync, shared_.prices.gradient_sync[r][c], c),
                       priced(chunk.parameter_gather, shared_.prices.parameter_gather[r][c], c)});
    gathered_.emplace_back(chunk.parameter_gather.size(), Weaver::none);
  }
  finalize_ = priced(model_.finalize, shared_.prices.finalize[r]);
  optimizer_ = priced(model_.optimizer, shared_.prices.optimizer[r]);
}

void Host::next() {
  if (at_ < program_.size()) {
    streams_.current = program_[at_].on_communication_stream ? Lane::expert : Lane::compute;
    follower_.follow(program_[at_]);
  } else {
    step_end();
  }
  ++at_;
}

// ---- HostLines

Handle Host::launch(const HostLine& line) {
  streams_.host_spends(line.host_ns);
  if (!line.on_gpu) return Weaver::none;
  Label what = line.label;
  streams_.place(what, line.own_stream ? streams_.current : what.lane, streams_.phase == 0 ? at_ : Label::none);
  if (!what.joins_pipeline) {
    const Handle node = streams_.launch(what, line.ns, line.load);
    if (line.read_by_host) streams_.synchronize(what.lane, what.instruction);
    return node;
  }
  const Handle arrival =
      streams_.launch(streams_.label(what.lane, NodeKind::transfer_start, Label::none), 0, profile::Load::none);
  const auto others = shared_.joins.arrive(shared_.weaver, rank_, streams_.phase, joined_++, arrival);
  return streams_.launch(what, line.ns, line.load, others);
}

void Host::run(const HostLines& lines, int microbatch) {
  for (const HostLine& line : lines) {
    if (microbatch < line.from_microbatch || microbatch >= line.before_microbatch) continue;
    const Lane other = line.own_stream ? streams_.current : line.label.lane;
    switch (line.kind) {
      case Step::Kind::launch:
        offload_.launched(line.index, launch(line));
        break;
      case Step::Kind::wait:
        streams_.wait(streams_.current, streams_.tail(other), at_);
        break;
      case Step::Kind::synchronize:
        streams_.synchronize(other, at_);
        break;
      case Step::Kind::allocate:
      case Step::Kind::free:
        break;
      default:
        offload_.hook(streams_, at_);
        break;
    }
  }
}

// ---- Forward and backward of a chunk

const HostPiece& Host::piece(int chunk, std::size_t position) const {
  return shared_.pieces[model_.chunks[static_cast<std::size_t>(chunk)].pieces[position]];
}

bool Host::begin_forward(model::Call /*call*/) {
  streams_.host_spends(shared_.forward_begin);
  return true;
}

void Host::gather_parameters(int chunk, std::span<const std::uint32_t> gathers) {
  const auto c = static_cast<std::size_t>(chunk);
  for (const auto gather : gathers) gathered_[c][gather] = launch(chunks_[c].parameter_gather[gather]);
}

void Host::wait_for_parameters(int chunk, std::uint32_t gather) {
  streams_.wait(streams_.current, gathered_[static_cast<std::size_t>(chunk)][gather], at_);
}

void Host::forward(model::Call call, std::size_t position) {
  offload_.enter(position, streams_.tail(Lane::compute));
  run(piece(call.chunk, position).forward, call.microbatch);
}

void Host::end_forward(model::Call /*call*/) { streams_.host_spends(shared_.forward_end); }

bool Host::begin_backward(model::Call /*call*/) {
  streams_.host_spends(shared_.backward_begin);
  return true;
}

void Host::backward(model::Call call, std::size_t position) {
  run(piece(call.chunk, position).backward, call.microbatch);
}

void Host::callbacks(model::Call /*call*/) { offload_.hook(streams_, at_); }

void Host::reduce_gradients(int chunk, std::span<const std::uint32_t> buckets) {
  for (const auto bucket : buckets) launch(chunks_[static_cast<std::size_t>(chunk)].gradient_sync[bucket]);
}

void Host::end_backward(model::Call /*call*/) { streams_.host_spends(shared_.backward_end); }

// ---- Pipeline transfers

bool Host::transfer(const schedule::Instruction& call, bool synchronous) {
  const schedule::Parts& parts = call.parts;
  if (!parts.empty()) wait_for_chain(parts.front());
  if (shared_.exchange.with_shapes()) {
    const auto shapes = shared_.exchange.call_shapes(streams_, rank_, parts, at_);
    if (!shapes.empty()) streams_.wait(streams_.current, shapes, at_, parts.front());
    streams_.synchronize(at_);
  }
  const auto done = shared_.exchange.call(streams_, rank_, parts, at_);
  if (!synchronous) return true;
  if (!done.empty()) streams_.wait(streams_.current, done, at_, parts.front());
  if (shared_.program.config.batched && shared_.scenario.settings.batch_p2p_sync) streams_.synchronize(at_);
  return true;
}

bool Host::wait(const schedule::Part& part) {
  wait_for_chain(part);
  streams_.wait(streams_.current, {shared_.exchange.posted(rank_, part)}, at_, part);
  return true;
}

// ---- Expert-parallel overlap

void Host::begin_combined(const schedule::Instruction& /*call*/) {
  in_combined_ = true;
  chain_.fill(Weaver::none);
}

// plan:615-622: the compute stream waits for both chains.
void Host::end_combined() {
  in_combined_ = false;
  for (const Handle event : chain_) streams_.wait(Lane::compute, event, at_);
}

// P2P calls inside a combined call come after what their chain has done so far (plan:596-607).
void Host::wait_for_chain(const schedule::Part& part) {
  if (in_combined_) streams_.wait(streams_.current, chain_[chain_of(part)], at_);
}

void Host::node(const schedule::Instruction& i, const model::NodePlace& place) {
  using Pass = schedule::Node::Pass;
  const HostLines& lines =
      piece(i.chunk, place.position).node(i.node.name)->passes[static_cast<std::size_t>(i.node.pass)];
  streams_.host_spends(i.node.pass == Pass::forward ? shared_.forward_node : shared_.backward_node);
  // backward_dw uses no event (models/common/utils.py:323-358); the loss runs outside of the call.
  if (i.node.pass == Pass::weight_gradient || !in_combined_) return run(lines, i.microbatch);
  Handle& event = chain_[i.node.pass == Pass::forward ? forward_chain : backward_chain];
  if (event == Weaver::none) event = streams_.tail(Lane::compute);  // record_current_stream (plan:536-548)
  streams_.wait(streams_.current, event, at_);
  run(lines, i.microbatch);
  if (streams_.tail(streams_.current) != Weaver::none) event = streams_.tail(streams_.current);
}

// ---- After the schedule

void Host::step_end() {
  finished_ = true;
  streams_.current = Lane::compute;
  streams_.phase = 1;
  streams_.wait(Lane::compute, streams_.tail(Lane::gradient), Label::none);
  for (const HostLine& line : finalize_) launch(line);
  streams_.synchronize(Label::none);
  streams_.phase = 2;
  joined_ = 0;
  for (const HostLine& line : optimizer_) launch(line);
}

}  // namespace pipewright::timeline
