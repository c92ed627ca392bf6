#include "chunk_rank.hpp"

#include <algorithm>

#include "pace.hpp"

namespace pipewright::timeline {

/// The next compute kernel queues behind P2P kernels launched before it; false: one of them has not begun yet.
bool ChunkRank::dequeue() {
  double latest = at_[compute_queue];
  for (const auto id : queued_) {
    const double start = machine_.transfers.started(id);
    if (start == unknown) return false;
    latest = std::max(latest, start);
  }
  queued_.clear();
  at_[compute_queue] = latest;
  return true;
}

bool ChunkRank::wait_until(double done) {
  if (done == unknown || (own_ == compute_queue && !dequeue())) return false;
  at_[own_] = std::max({at_[own_], at_[host_queue], done});
  return true;
}

bool ChunkRank::synchronize() {
  double last = *std::max_element(at_.begin() + compute_queue, at_.end());
  for (const auto id : p2p_) {
    if (id == nobody) continue;
    const double done = machine_.transfers.done(id);
    if (done == unknown) return false;
    last = std::max(last, done);
  }
  at_[host_queue] = std::max(at_[host_queue], last + machine_.synchronize);
  return true;
}

void ChunkRank::post(const schedule::Instruction& call) {
  std::int32_t start = nobody;
  for (const schedule::Part& part : call.parts) {
    const Lane lane = p2p_lane(machine_.scenario, machine_.program.config.stages, rank_, part, batched_);
    const std::size_t stream = lane == Lane::p2p ? 0 : 1;
    if (start == nobody || !batched_) {
      at_[host_queue] += machine_.p2p_call;
      start = machine_.transfers.start(std::max(at_[host_queue], at_[own_]), p2p_[stream], last_queued_);
      if (machine_.one_queue) queued_.push_back(start), last_queued_ = start;
    }
    p2p_[stream] = machine_.transfers.post(rank_, part, start);
  }
}

bool ChunkRank::transfer(const schedule::Instruction& call, bool synchronous) {
  if (!call.parts.empty() && machine_.transfers.posted(rank_, call.parts.front()) == nobody) {
    if (!wait_for_chain(call.parts.front())) return false;
    post(call);
  }
  if (!synchronous) return true;
  double last = 0;
  for (const schedule::Part& part : call.parts) {
    const double done = machine_.transfers.done(machine_.transfers.posted(rank_, part));
    if (done == unknown) return false;
    last = std::max(last, done);
  }
  if (!call.parts.empty() && !wait_until(last)) return false;
  return !batched_ || !machine_.scenario.settings.batch_p2p_sync || synchronize();
}

/// What ran beside the lines of the round before, some of the way there from what it was run with.
void ChunkRank::slow_down(ChunkBefore& before) {
  const auto settle = [](std::vector<double>& list, const std::vector<double>& then, double now) {
    const auto n = list.size();
    list.push_back(n < then.size() ? then[n] + towards_next_round * (now - then[n]) : now);
  };
  for (std::size_t stream = 0; stream < before.spans.size(); ++stream) {
    auto& contended = contended_[stream];
    contended.reserve(before.spans[stream].size());
    Covered covered(before.network), across(before.across);
    for (const auto& [from, to] : before.spans[stream]) {
      double share = std::min(1.0, covered.share(from, to) + machine_.collapser.across() * across.share(from, to));
      if (overlaps_ && stream == 0)
        share = std::min(1.0, share + machine_.collapser.dispatcher() * last_.exchanges.share(from, to));
      settle(contended, before.contended[stream], share);
    }
  }
  for (const auto& [from, to] : before.spans[1]) {
    double more = 0;
    for (std::size_t kind = 0; kind < last_.kinds.size(); ++kind)
      more += machine_.collapser.beside()[kind] * last_.kinds[kind].share(from, to);
    settle(exchanged_, before.exchanged, more);
  }
  // As much will be kept again.
  for (std::size_t stream = 0; stream < spans_.size(); ++stream) {
    spans_[stream].reserve(before.spans[stream].size());
    use_.computed[stream].reserve(last_.computed[stream].size());
  }
  network_.reserve(before.network.size());
  across_.reserve(before.across.size());
}

/// At the clock that the middle of the line will have.
Slowdown ChunkRank::slowdown(const Line& line) {
  Slowdown at;
  const double nominal = line.cool_busy();
  if (nominal > 0 && machine_.collapser.window() > 0) {
    const double ahead = nominal / 2, start = std::max(at_[own_], at_[host_queue]);
    const double period = last_step_ > 0 ? last_step_ : start + ahead;
    const double window = std::min(static_cast<double>(machine_.collapser.window()), period);
    const double from = start + ahead - window;
    double load = std::min(ahead, window) * line.cool_load() / nominal;
    for (std::size_t stream = 0; stream < (overlaps_ ? 2 : 1); ++stream) {
      Computed &now = use_.computed[stream], &before = last_.computed[stream];
      load += now.total() - (from < 0 ? 0 : now.until(from));
      if (from < 0 && last_step_ > 0) load += before.total() - before.until(last_step_ + from);
    }
    at = machine_.collapser.at_duty(std::max(0.0, load) / window);
  }
  const auto& contended = contended_[stream()];
  if (const auto n = spans_[stream()].size(); n < contended.size()) {
    at.contended = contended[n];
    if (own_ == expert_queue) at.exchanged = exchanged_[n];
  }
  return at;
}

/// Kernels, by what they do to the queues' times under a slowdown.
template <class Apply>
void ChunkRank::work(const Line& line, const Apply& apply) {
  const Slowdown at = slowdown(line);
  const double before = at_[own_];
  constexpr std::array sides{model::Stream::gradient, model::Stream::parameter};
  const std::array then{at_[queue_of(sides[0])], at_[queue_of(sides[1])]};
  apply(at);
  const double after = at_[own_], busy = line.busy(at);
  auto& spans = spans_[stream()];
  const double exchanges = own_ == expert_queue ? line.exchanges() : 0;
  spans.emplace_back(std::max(before, after - std::max(busy + exchanges * (1 + at.exchanged), 1.0)), after);
  const double start = spans.back().first;
  use_.computed[stream()].add(start, after, line.load(at));
  if (own_ == expert_queue)
    use_.exchanges.add(start, after, exchanges * (1 + at.exchanged));
  else if (overlaps_)
    for (std::size_t kind = 0; kind < use_.kinds.size(); ++kind) use_.kinds[kind].add(start, after, line.kinds()[kind]);
  for (std::size_t side = 0; side < sides.size(); ++side) {
    const double end = at_[queue_of(sides[side])], began = then[side];
    if (end > began) network_.emplace_back(std::max(began, end - line.beside(sides[side])), end);
  }
}

/// A list of kernels.
void ChunkRank::work(const Line& line) {
  if (!line.empty()) work(line, [&](const Slowdown& at) { line.apply(at_, at, own_); });
}

/// One piece.
void ChunkRank::work(const std::vector<Passage>& passages) {
  for (const Passage& passage : passages) {
    if (passage.parts.empty() || !(passage.marks || copies_.act(passage.hooks))) {
      copies_.skip(passage.hooks);
      work(passage.whole);
      continue;
    }
    work(passage.whole, [&](const Slowdown& at) {
      for (const Passage::Part& part : passage.parts) {
        part.line.apply(at_, at, own_);
        copies_.hooks(part.hooks, at_, own_);
        if (part.kernel != model::OffloadGroup::none)
          copies_.launched(part.kernel, at_[part.queue == compute_queue ? own_ : part.queue]);
      }
    });
  }
}

/// A node waits for the one before it of its chain, on whichever stream that ran (plan:536-548); weight gradients use
/// no event, and the loss runs outside of the call.
void ChunkRank::node(const schedule::Instruction& i, const model::NodePlace& place) {
  using Pass = schedule::Node::Pass;
  at_[host_queue] += i.node.pass == Pass::forward ? machine_.forward_node : machine_.backward_node;
  const auto piece = machine_.stages.ranks[rank_].chunks[i.chunk].pieces[place.position];
  const auto node = static_cast<std::size_t>(place.steps - machine_.stages.pieces[piece].nodes.data());
  const auto& passages =
      machine_.lines.pieces[piece].of(i.microbatch).nodes[node][static_cast<std::size_t>(i.node.pass)];
  if (i.node.pass == Pass::weight_gradient || !in_combined_) {
    work(passages);
    return;
  }
  double& event = chain_[i.node.pass == Pass::forward ? forward_chain : backward_chain];
  if (event == unknown) event = at_[compute_queue];
  at_[own_] = std::max(at_[own_], event);
  work(passages);
  event = at_[own_];
}

}  // namespace pipewright::timeline
