// A host following its program, see host.hpp. Sources: schedules.py, combined_1f1b.py and
// model_chunk_schedule_plan.py of Megatron core_r0.19.0; batch_p2p_comm with batch_p2p_sync synchronises device and
// host after every call (p2p_communication.py:421-424).
#include "host.hpp"

#include <algorithm>
#include <climits>

namespace pipewright::timeline {
namespace {

using model::Step;
using schedule::Kind;
using schedule::no_microbatch;
constexpr std::size_t forward_chain = 0, backward_chain = 1;

/// Places of a chunk's pieces among its layers: -1 before the first, the number of layers after the last. A piece may
/// hold several layers (full recompute); it counts as its first.
std::vector<int> ordinals_of(const model::Chunk& chunk) {
  std::vector<int> ordinals;
  const auto first = std::find_if(chunk.layers.begin(), chunk.layers.end(), [](int layer) { return layer >= 0; });
  for (auto layer = chunk.layers.begin(); layer != chunk.layers.end(); ++layer)
    ordinals.push_back(*layer >= 0 ? *layer - *first : layer < first ? -1 : INT_MAX);
  return ordinals;
}

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
      backwards_left_(model_.chunks.size(), 0),
      reduced_(model_.chunks.size(), 0),
      gathered_(model_.chunks.size(), Weaver::none) {
  chain_.fill(Weaver::none);
  const auto r = static_cast<std::size_t>(rank);
  const auto priced = [&](const std::vector<model::Kernel>& kernels, const Prices::List& prices,
                          std::uint32_t chunk = 0) { return timeline::lines_of(kernels, prices, shared_.gap, chunk); };
  for (std::uint32_t c = 0; c < model_.chunks.size(); ++c) {
    const model::Chunk& chunk = model_.chunks[c];
    ChunkLines& lines = chunks_.emplace_back();
    lines.gradient_sync = priced(chunk.gradient_sync, shared_.prices.gradient_sync[r][c], c);
    lines.parameter_gather = priced(chunk.parameter_gather, shared_.prices.parameter_gather[r][c], c);
    for (const auto piece : chunk.pieces)
      if (shared_.pieces[piece].is_layer()) lines.layers.push_back(piece);
    lines.ordinals = ordinals_of(chunk);
    // Buckets of several buffers (dense, experts) in the order in which backward completes them.
    if (chunk.gradient_sync_layers.size() == lines.gradient_sync.size())
      std::stable_sort(lines.gradient_sync.begin(), lines.gradient_sync.end(), [&](const auto& a, const auto& b) {
        return chunk.gradient_sync_layers[a.label.kernel()] > chunk.gradient_sync_layers[b.label.kernel()];
      });
  }
  finalize_ = priced(model_.finalize, shared_.prices.finalize[r]);
  optimizer_ = priced(model_.optimizer, shared_.prices.optimizer[r]);
  for (const auto& i : program_) {
    if (i.kind == Kind::backward) ++backwards_left_[static_cast<std::size_t>(i.chunk)];
    if (i.kind == Kind::combined_begin && i.backward_microbatch != no_microbatch)
      ++backwards_left_[static_cast<std::size_t>(i.backward_chunk)];
  }
}

void Host::next() {
  if (at_ < program_.size())
    follow(program_[at_]);
  else
    step_end();
  ++at_;
}

void Host::follow(const schedule::Instruction& i) {
  streams_.current = i.on_communication_stream ? Lane::expert : Lane::compute;
  switch (i.kind) {
    case Kind::forward:
      return forward(i.microbatch, i.chunk);
    case Kind::backward:
      return backward(i.microbatch, i.chunk);
    case Kind::combined:
      throw InternalError("a combined call that is not written out node by node");
    case Kind::combined_begin:
      return combined_begin(i);
    case Kind::combined_end:
      return combined_end();
    case Kind::node:
      return node(i);
    case Kind::p2p_async:
      return transfer(i, false);
    case Kind::p2p_sync:
      return transfer(i, true);
    case Kind::wait: {
      const schedule::Part& part = i.parts.front();
      wait_for_chain(part);
      return streams_.wait(streams_.current, {shared_.exchange.posted(rank_, part)}, at_, part);
    }
    case Kind::no_sync_enter:
      reduces_ = false;
      return;
    case Kind::no_sync_exit:
      reduces_ = true;
      return;
    case Kind::param_sync:
      return gather_parameters(i.chunk);
    case Kind::grad_sync:
      return reduce_gradients(i.chunk);
    case Kind::deallocate:
      return;
  }
}

// ---- HostLines

Handle Host::launch(const HostLine& line) {
  streams_.host_spends(line.host_ns);
  if (!line.on_gpu) return Weaver::none;
  Label what = line.label;
  streams_.place(what, line.own_stream ? streams_.current : what.lane, streams_.phase == 0 ? at_ : Label::none);
  if (!what.joins_pipeline) return streams_.launch(what, line.ns, line.load);
  const Handle arrival =
      streams_.launch(streams_.label(what.lane, NodeKind::transfer_start, Label::none), 0, profile::Load::none);
  const auto others = shared_.joins.arrive(shared_.weaver, rank_, streams_.phase, joined_++, arrival);
  return streams_.launch(what, line.ns, line.load, others);
}

void Host::run(const HostLines& lines, bool first_microbatch) {
  for (const HostLine& line : lines) {
    if (line.first_microbatch_only && !first_microbatch) continue;
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

void Host::forward_begins(int microbatch, int chunk) {
  streams_.host_spends(shared_.forward_begin);
  if (microbatch != 0) return;
  // Without align_param_gather the chunk's first forward hook gathers, and waits.
  const auto c = static_cast<std::size_t>(chunk);
  if (gathered_[c] == Weaver::none) gather_parameters(chunk);
  streams_.wait(streams_.current, gathered_[c], at_);
}

// Autograd's hooks reduce a chunk's gradients in the last backward, unless align_grad_reduce has its own place for it.
void Host::backward_ends(int chunk) {
  offload_.hook(streams_, at_);  // autograd's callbacks
  if (--backwards_left_[static_cast<std::size_t>(chunk)] == 0 && reduces_) reduce_gradients(chunk);
  streams_.host_spends(shared_.backward_end);
}

void Host::forward(int microbatch, int chunk) {
  forward_begins(microbatch, chunk);
  const auto& pieces = model_.chunks[static_cast<std::size_t>(chunk)].pieces;
  for (std::size_t at = 0; at < pieces.size(); ++at) {
    offload_.enter(at, streams_.tail(Lane::compute));
    run(shared_.pieces[pieces[at]].forward, microbatch == 0);
  }
  streams_.host_spends(shared_.forward_end);
}

void Host::backward(int microbatch, int chunk) {
  const auto c = static_cast<std::size_t>(chunk);
  const auto& pieces = model_.chunks[c].pieces;
  const bool last = backwards_left_[c] == 1 && reduces_;
  streams_.host_spends(shared_.backward_begin);
  for (std::size_t i = pieces.size(); i-- > 0;) {
    const HostPiece& piece = shared_.pieces[pieces[i]];
    run(piece.backward, microbatch == 0);
    run(piece.weight_gradient, microbatch == 0);
    if (last && i > 0) reduce_gradients(chunk, chunks_[c].ordinals[i]);
  }
  backward_ends(chunk);
}

void Host::gather_parameters(int chunk) {
  const auto c = static_cast<std::size_t>(chunk);
  for (const HostLine& line : chunks_[c].parameter_gather) {
    const Handle node = launch(line);
    if (node != Weaver::none) gathered_[c] = node;
  }
}

void Host::reduce_gradients(int chunk, int layer) {
  const auto c = static_cast<std::size_t>(chunk);
  const HostLines& buckets = chunks_[c].gradient_sync;
  const std::vector<int>& complete = model_.chunks[c].gradient_sync_layers;
  for (std::size_t& next = reduced_[c]; next < buckets.size(); ++next) {
    const std::uint32_t bucket = buckets[next].label.kernel();
    if (layer >= 0 && (bucket >= complete.size() || complete[bucket] < layer)) return;
    launch(buckets[next]);
  }
}

// ---- Pipeline transfers

void Host::transfer(const schedule::Instruction& call, bool synchronous) {
  const schedule::Parts& parts = call.parts;
  if (!parts.empty()) wait_for_chain(parts.front());
  if (shared_.exchange.with_shapes()) {
    const auto shapes = shared_.exchange.call_shapes(streams_, rank_, parts, at_);
    if (!shapes.empty()) streams_.wait(streams_.current, shapes, at_, parts.front());
    streams_.synchronize(at_);
  }
  const auto done = shared_.exchange.call(streams_, rank_, parts, at_);
  if (!synchronous) return;
  if (!done.empty()) streams_.wait(streams_.current, done, at_, parts.front());
  if (shared_.program.config.batched && shared_.scenario.settings.batch_p2p_sync) streams_.synchronize(at_);
}

// ---- Expert-parallel overlap

void Host::combined_begin(const schedule::Instruction& call) {
  in_combined_ = true;
  combined_ = call;
  chain_.fill(Weaver::none);
  if (call.microbatch != no_microbatch) forward_begins(call.microbatch, call.chunk);
  if (call.backward_microbatch != no_microbatch) streams_.host_spends(shared_.backward_begin);
}

// plan:615-622: the compute stream waits for both chains.
void Host::combined_end() {
  in_combined_ = false;
  for (const Handle event : chain_) streams_.wait(Lane::compute, event, at_);
  if (combined_.microbatch != no_microbatch) streams_.host_spends(shared_.forward_end);
  if (combined_.backward_microbatch != no_microbatch) backward_ends(combined_.backward_chunk);
}

// P2P calls inside a combined call come after what their chain has done so far (plan:596-607).
void Host::wait_for_chain(const schedule::Part& part) {
  if (in_combined_) streams_.wait(streams_.current, chain_[chain_of(part)], at_);
}

void Host::node(const schedule::Instruction& i) {
  using Pass = schedule::Node::Pass;
  const HostLines& lines = lines_of(i).passes[static_cast<std::size_t>(i.node.pass)];
  const bool first = i.microbatch == 0;
  streams_.host_spends(i.node.pass == Pass::forward ? shared_.forward_node : shared_.backward_node);
  // backward_dw uses no event (models/common/utils.py:323-358); the loss runs outside of the call.
  if (i.node.pass == Pass::weight_gradient || !in_combined_) return run(lines, first);
  Handle& event = chain_[i.node.pass == Pass::forward ? forward_chain : backward_chain];
  if (event == Weaver::none) event = streams_.tail(Lane::compute);  // record_current_stream (plan:536-548)
  streams_.wait(streams_.current, event, at_);
  run(lines, first);
  if (streams_.tail(streams_.current) != Weaver::none) event = streams_.tail(streams_.current);
}

const HostNode& Host::lines_of(const schedule::Instruction& i) const {
  const auto chunk = static_cast<std::size_t>(i.chunk);
  const HostNode* found = nullptr;
  if (i.node.layer >= 0) {
    found = shared_.pieces[chunks_[chunk].layers.at(static_cast<std::size_t>(i.node.layer))].node(i.node.name);
  } else {
    for (const auto piece : model_.chunks[chunk].pieces)
      if (!found) found = shared_.pieces[piece].node(i.node.name);
  }
  if (!found) throw InternalError("the model has no piece for a node of the schedule");
  return *found;
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
