#include "paged_stash.hpp"

#include <algorithm>

namespace pipewright::offload {

using Kind = Action::Kind;
using model::Step;

void PagedStash::hook(Step::Kind kind, std::uint32_t unit) {
  switch (kind) {
    case Step::Kind::offload_begin:  // PipelinePreScheduleFunction.forward
      return wait_for_stash();
    case Step::Kind::offload_commit:
      return commit_forward(unit);
    case Step::Kind::reload_wait:
      return commit_backward(unit);
    case Step::Kind::reload_hook:  // PipelinePreScheduleFunction.backward
      if (!learning_ && next_ < order_.size() && order_[next_].backward) reload(order_[next_].unit);
      return;
    default:
      throw InternalError("not a hook of the paged stash");
  }
}

/// on_save_for_backward and on_get_saved_tensor count what lives.
void PagedStash::count(std::uint32_t unit, std::int64_t sign) {
  for (const auto& pages : recorder_.group(unit).pages) {
    auto one = std::ranges::find_if(
        use_, [&](const PageUse& use) { return use.kind.type == pages.type && use.kind.row_bytes == pages.row_bytes; });
    if (one == use_.end()) one = use_.insert(use_.end(), PageUse{pages});
    one->expected += sign * pages.expected;
    one->rows += sign * pages.rows;
    one->most_expected = std::max(one->most_expected, one->expected);
    one->most_rows = std::max(one->most_rows, one->rows);
  }
}

/// PipelinePostScheduleFunction.forward
void PagedStash::commit_forward(std::uint32_t unit) {
  if (learning_) {
    order_.push_back({unit, false});
    recorder_.act(Kind::pack, unit);
    return count(unit, 1);
  }
  const Turn& after = order_.at(++next_);
  if (after.backward && after.unit == unit) return recorder_.act(Kind::keep, unit);
  recorder_.act(Kind::copy_out, unit);
  stashing_.push_back(unit);
  if (after.backward) reload(after.unit);
}

/// PipelinePostScheduleFunction.backward
void PagedStash::commit_backward(std::uint32_t unit) {
  if (learning_) {
    order_.push_back({unit, true});
    recorder_.act(Kind::unpack, unit);
    return count(unit, -1);
  }
  ++next_;
  wait_for_stash();
  for (const auto one : reloading_) recorder_.act(Kind::wait_in, one);
  reloading_.clear();
}

void PagedStash::wait_for_stash() {
  for (const auto unit : stashing_) {
    recorder_.act(Kind::wait_out, unit);
    recorder_.act(Kind::release, unit);
  }
  stashing_.clear();
}

void PagedStash::reload(std::uint32_t unit) {
  recorder_.act(Kind::copy_in, unit);
  reloading_.push_back(unit);
}

void PagedStash::end_iteration() {
  learning_ = false;
  next_ = 0;
}

}  // namespace pipewright::offload
