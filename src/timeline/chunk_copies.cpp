#include "chunk_copies.hpp"

#include <algorithm>
#include <cmath>

#include "lines.hpp"

namespace pipewright::timeline {
namespace {

using CopyAction = offload::Action::Kind;

constexpr double no_copy = -1;
constexpr std::size_t out_queue = 1 + static_cast<std::size_t>(model::Stream::d2h),
                      in_queue = 1 + static_cast<std::size_t>(model::Stream::h2d);

constexpr bool takes_time(CopyAction kind) {
  return kind == CopyAction::copy_out || kind == CopyAction::copy_in || kind == CopyAction::wait_out ||
         kind == CopyAction::wait_in || kind == CopyAction::reload_now;
}

void append(CopyPrices::Copy& copy, const Price& price, double gap) {
  const double ns = static_cast<double>(whole_ns(price.time.ns)) + gap;
  copy.host += static_cast<double>(nanoseconds(price.host_us));
  copy.behind_host = std::max(copy.behind_host, copy.host) + ns;
  copy.ns += ns;
  copy.gaps += gap;
}

}  // namespace

CopyPrices price_copies(const model::Stages& stages, const Prices& prices, std::int64_t gap_ns) {
  CopyPrices result;
  const auto gap = static_cast<double>(gap_ns);
  for (std::size_t piece = 0; piece < stages.pieces.size(); ++piece) {
    auto& groups = result.groups.emplace_back();
    for (const model::OffloadGroup& group : stages.pieces[piece].groups) {
      auto& priced = groups.emplace_back();
      for (const auto& move : group.moves) {
        append(priced.out, prices.pieces[piece][move.out], gap);
        append(priced.in, prices.pieces[piece][move.in], gap);
        append(priced.outs.emplace_back(), prices.pieces[piece][move.out], gap);
        priced.outs.back().after = move.after;
      }
    }
  }
  return result;
}

CopyPlan::CopyPlan(const CopyPrices& prices, const offload::Plan& plan)
    : units_(plan.units.size()), whole_layer_(plan.whole_layer), stash_(plan.stash) {
  acts_.reserve(plan.later.actions.size());
  first_.reserve(plan.later.first.size());
  first_.push_back(0);
  for (std::size_t hook = 0; hook < plan.later.hooks(); ++hook) {
    for (const auto& action : plan.later.at(hook)) {
      const offload::Unit& unit = plan.units[action.unit];
      const auto& group = prices.groups[unit.piece][unit.group];
      if (takes_time(action.kind) && !group.outs.empty())
        acts_.push_back({action.kind, action.unit, unit.position, &group});
    }
    first_.push_back(static_cast<std::uint32_t>(acts_.size()));
  }
}

ChunkCopies::ChunkCopies(const CopyPlan& plan, CopySlowdowns slower)
    : plan_(plan), out_(plan.units(), no_copy), in_(plan.units(), no_copy), slower_(std::move(slower)) {
  for (std::size_t way = 0; way < spans_.size(); ++way) spans_[way].reserve(slower_[way].size());
}

void ChunkCopies::hooks(std::uint32_t count, QueueTimes& at, std::size_t own) {
  if (plan_.empty()) return;
  const auto wait = [&](double end) {
    if (end > no_copy) at[own] = std::max({at[own], at[host_queue], end});
  };
  for (const auto& act : plan_.at(next_, count)) {
    switch (act.kind) {
      case CopyAction::copy_out:
        out_[act.unit] = copy_out(at, own, act);
        break;
      case CopyAction::wait_out:
        wait(out_[act.unit]);
        break;
      case CopyAction::copy_in:
        in_[act.unit] = copy_in(at, own, act);
        break;
      case CopyAction::wait_in:
        wait(in_[act.unit]);
        break;
      default: {  // reload_now
        const Copy& copy = act.group->in;
        at[own] = in_[act.unit] = std::max(at[own] + copy.ns, at[host_queue] + copy.behind_host);
        at[host_queue] += copy.host;
      }
    }
  }
  next_ += count;
}

void ChunkCopies::enter(std::size_t position, double at) {
  if (!plan_.whole_layer()) return;
  position_ = position;
  if (present_.size() <= position) present_.resize(position + 1);
  present_[position].start = at;
}

void ChunkCopies::launched(std::uint32_t kernel, double end) {
  auto& kernels = present_[position_].kernels;
  if (kernels.size() <= kernel) kernels.resize(kernel + 1, 0);
  kernels[kernel] = end;
}

double ChunkCopies::copy_out(QueueTimes& at, std::size_t own, const CopyPlan::Act& act) {
  if (!plan_.whole_layer()) return run(at, act.group->out, out_queue, at[own], 0);
  const Present& layer = present_[act.position];
  double end = no_copy;
  for (const Copy& copy : act.group->outs) {
    const double there = copy.after == model::OffloadGroup::none ? layer.start : layer.kernels.at(copy.after);
    end = run(at, copy, out_queue, std::max(there, at[in_queue]), 0);
  }
  return end;
}

double ChunkCopies::copy_in(QueueTimes& at, std::size_t own, const CopyPlan::Act& act) {
  const double after = plan_.whole_layer() ? at[out_queue] : out_[act.unit];
  return run(at, act.group->in, plan_.stash() ? out_queue : in_queue, std::max(at[own], after), 1);
}

/// A copy joins its stream.
double ChunkCopies::run(QueueTimes& at, const Copy& copy, std::size_t queue, double ready, std::size_t way) {
  auto& spans = spans_[way];
  const auto& slower = slower_[way];
  const double factor = spans.size() < slower.size() ? slower[spans.size()] : 1;
  const double more = std::floor((copy.ns - copy.gaps) * (factor - 1) + 0.5);
  const double end = std::max(std::max(at[queue], ready) + copy.ns, at[host_queue] + copy.behind_host) + more;
  at[host_queue] += copy.host;
  spans.emplace_back(end - copy.ns - more, end);
  return at[queue] = end;
}

}  // namespace pipewright::timeline
