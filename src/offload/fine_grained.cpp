// PipelineOffloadManager and ChunkOffloadHandler of fine_grained_activation_offload.py (core_r0.19.0; lines below),
// with actions in place of copies. A chunk of two layers, one module, K = 1 group kept by the chunk of the next
// backward pass:
//
//   forward    begin a, commit a: D2H a | begin b, commit b: D2H b
//   backward   (b came back earlier) b: wait b .. done: H2D a | a: wait a .. done: H2D of the next backward chunk's b
#include "fine_grained.hpp"

#include <algorithm>

namespace pipewright::offload {

using Kind = Action::Kind;
using model::Step;

bool FineGrained::Handler::has(int name, std::size_t from) const {
  return std::any_of(groups.begin() + static_cast<std::ptrdiff_t>(std::min(from, groups.size())), groups.end(),
                     [&](const Group& group) { return group.name == name; });
}

/// init_model_chunk_offload_handler, :686: only the first iteration makes handlers.
void FineGrained::begin_forward(int, int chunk) {
  if (!warmup_) return;
  const auto stage = static_cast<std::size_t>(chunk);
  const bool last = stage + 1 == stages_.size();
  if (last) flush();
  auto* handler = forward_.emplace_back(std::make_unique<Handler>()).get();
  stages_[stage].push_back(handler);
  if (last) {
    backward_.push_back(handler);
    flush();
  }
  current_forward_ = handler;
}

/// :537
void FineGrained::flush() {
  if (stages_.front().size() != stages_.back().size()) return;
  stages_.back().clear();
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    backward_.insert(backward_.end(), stage->begin(), stage->end());
    stage->clear();
  }
}

void FineGrained::hook(Step::Kind kind, std::uint32_t unit) {
  switch (kind) {
    case Step::Kind::offload_begin:
      return start_forward(unit);
    case Step::Kind::offload_commit:
      return commit_forward(unit);
    case Step::Kind::reload_wait:
      return commit_backward(unit);
    case Step::Kind::reload_hook:
      return start_backward(unit);
    default:
      throw InternalError("not a hook of activation offload");
  }
}

/// pop_forward_chunk, :748, with finish_all_groups, :920.
FineGrained::Handler* FineGrained::pop_forward(int name) {
  const auto finished = [&](const Handler& handler) {
    if (handler.to_reload.empty() && handler.to_offload.empty() && handler.index > 0) return true;
    return !handler.has(name, handler.index);
  };
  while (!warmup_ && (!current_forward_ || finished(*current_forward_))) {
    if (next_forward_ >= forward_.size()) return current_forward_ = nullptr;
    current_forward_ = forward_[next_forward_++].get();
  }
  return current_forward_;
}

/// :676
FineGrained::Handler* FineGrained::front_backward(std::optional<int> name) const {
  for (auto i = next_backward_; i < backward_.size(); ++i)
    if (name ? backward_[i]->has(*name) : !backward_[i]->groups.empty()) return backward_[i];
  return nullptr;
}

/// on_group_start_forward, :1170
void FineGrained::start_forward(std::uint32_t unit) {
  const int name = recorder_.name(unit);
  auto* handler = pop_forward(name);
  if (handler_of_.size() <= unit) handler_of_.resize(recorder_.units().size(), nullptr);
  handler_of_[unit] = handler;
  if (!handler) return;
  ++handler->index;
  if (warmup_) {
    handler->groups.push_back({name, recorder_.units()[unit].bytes});
  } else {
    while (handler->groups.at(handler->index - 1).name != name) ++handler->index;
  }
  auto& group = handler->groups[handler->index - 1];
  group.unit = unit;
  handler->to_offload.push_back(&group);
}

/// should_bulk_offload, :1066: a group that the very next backward pass needs stays, if it is the last of its name.
bool FineGrained::moves(const Handler& handler, const Group& group) const {
  if (warmup_) return true;
  if (!group.offload) return false;
  return front_backward(group.name) != &handler || handler.has(group.name, handler.index);
}

/// bulk_offload, :1089
void FineGrained::commit_forward(std::uint32_t unit) {
  auto* handler = current_forward_;
  if (!handler) return recorder_.act(Kind::keep, unit);
  auto& pending = handler->to_offload;
  const auto found =
      std::find_if(pending.begin(), pending.end(), [&](const Group* g) { return g->name == recorder_.name(unit); });
  if (found == pending.end()) throw InternalError("offload: a group ends that never began");
  Group& group = **found;
  if (moves(*handler, group)) {
    handler->to_reload.push_back(&group);
    copy_out(*handler, group);
  } else {
    recorder_.act(Kind::keep, group.unit);
  }
  pending.erase(found);
}

/// bulk_offload_group, :1002, with _drain_offload_pending, :1110
void FineGrained::copy_out(Handler& handler, Group& group) {
  recorder_.act(Kind::copy_out, group.unit);
  recorder_.act(Kind::release, group.unit);
  group.on_host = true;
  if (!rules_.inflight) return;
  auto& pending = handler.pending[group.name];
  pending.push_back(group.unit);
  while (static_cast<std::int64_t>(pending.size()) > *rules_.inflight) {
    recorder_.act(Kind::wait_out, pending.front());
    pending.pop_front();
  }
}

/// on_group_commit_backward, :1148, and what tensor_pop, :972, does to a group whose reload nobody has started.
void FineGrained::commit_backward(std::uint32_t unit) {
  auto* handler = handler_of_.at(unit);
  if (!handler) return;
  const int name = recorder_.name(unit);
  if (current_backward_ != handler) {
    current_backward_ = nullptr;
    while (next_backward_ < backward_.size() && !current_backward_) {
      auto* next = backward_[next_backward_++];
      if (next->has(name)) current_backward_ = next;
    }
    if (current_backward_ != handler) throw UsageError(chunk_mismatch);
  }
  auto& reloading = handler->reloading;
  const auto found = std::find_if(reloading.begin(), reloading.end(), [&](const Group* g) { return g->name == name; });
  if (found != reloading.end()) {
    recorder_.act(Kind::wait_in, (*found)->unit);
    reloading.erase(found);
  }
  for (auto& group : handler->groups) {
    if (group.unit != unit || !group.on_host) continue;
    recorder_.act(Kind::reload_now, unit);
    group.on_host = false;
  }
}

/// bulk_reload, :1131
void FineGrained::start_backward(std::uint32_t unit) {
  auto* handler = handler_of_.at(unit);
  if (!handler) return;
  if (!handler->to_reload.empty()) return reload(*handler);
  auto* next = front_backward();
  if (next && next->index == next->groups.size() && !next->to_reload.empty()) reload(*next);
}

/// bulk_reload_group, :1036
void FineGrained::reload(Handler& handler) {
  auto* group = handler.to_reload.back();
  handler.to_reload.pop_back();
  if (group->on_host) recorder_.act(Kind::copy_in, group->unit);
  group->on_host = false;
  handler.reloading.push_back(group);
}

void FineGrained::end_iteration() {
  if (warmup_ && !forward_.empty()) learned();
  current_forward_ = current_backward_ = nullptr;
  next_forward_ = next_backward_ = 0;
  handler_of_.clear();
  for (auto& handler : forward_) {
    handler->index = 0;
    handler->to_offload.clear();
    handler->to_reload.clear();
    handler->reloading.clear();
    handler->pending.clear();
  }
}

/// post_warmup_callback, :566
void FineGrained::learned() {
  warmup_ = false;
  std::size_t margin = 0;
  std::vector<std::pair<int, Group*>> last;  // of each name, the last group of the first backward chunk with it
  for (auto handler = backward_.rbegin(); handler != backward_.rend(); ++handler) {
    std::vector<int> names;
    for (auto& group : (*handler)->groups) {
      if (std::find(names.begin(), names.end(), group.name) == names.end()) names.push_back(group.name);
      const auto known =
          std::find_if(last.begin(), last.end(), [&](const auto& one) { return one.first == group.name; });
      if (known == last.end())
        last.emplace_back(group.name, &group);
      else
        known->second = &group;
    }
    margin = std::max(margin, names.size());
  }
  for (auto& [name, group] : last) {
    if (margin == 0) break;
    group->offload = false;
    --margin;
  }
  auto keep = rules_.pp_rank * rules_.delta;
  for (auto* handler : backward_) {
    for (auto& group : handler->groups) {
      if (!group.offload || keep <= 0) continue;
      keep -= group.bytes.value;
      group.offload = false;
    }
  }
  for (auto* handler : backward_) {
    std::vector<Group*> eligible;
    for (auto& group : handler->groups)
      if (group.offload && group.bytes.value > 0) eligible.push_back(&group);
    auto kept = static_cast<std::size_t>(static_cast<double>(eligible.size()) * (1 - rules_.fraction));
    for (auto group = eligible.rbegin(); group != eligible.rend() && kept > 0; ++group, --kept)
      (*group)->offload = false;
  }
}

}  // namespace pipewright::offload
