// What runs beside the compute stream, and what belongs nowhere.
#include <algorithm>

#include "matcher.hpp"

namespace pipewright::traces {

void Matcher::map_other_streams() {
  struct Slot {
    const Expected* expected;
    const Pattern* pattern;
    std::size_t instance;
  };
  std::map<std::pair<model::Stream, std::string>, std::vector<Slot>> wanted;
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    for (const auto& e : tiles_[t].pattern->elsewhere) {
      wanted[{e.kernel->stream, e.operation}].push_back({&e, tiles_[t].pattern, t});
    }
  }
  std::map<std::pair<std::int64_t, std::vector<std::string>>, std::vector<std::uint32_t>> found;  // what each can be
  for (std::uint32_t i = 0; i < trace_.activities.size(); ++i) {
    const Activity& a = trace_.activities[i];
    if (kinds_[i] == "p2p") {
      result_.pipeline.push_back(i);
    } else if (!is_of_stream(i) && a.stream != beside_) {
      const auto& operations = meanings_[a.name].operations;
      found[{a.stream, a.engine == Engine::d2h   ? std::vector<std::string>{"copy.d2h"}
                       : a.engine == Engine::h2d ? std::vector<std::string>{"copy.h2d"}
                                                 : operations}]
          .push_back(i);
    }
  }
  for (const auto& [where, slots] : wanted) {
    for (const auto& [stream, activities] : found) {
      if (activities.size() != slots.size()) continue;
      if (std::find(stream.second.begin(), stream.second.end(), where.second) == stream.second.end()) continue;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        result_.operations.push_back(
            {slots[i].expected, slots[i].pattern, slots[i].instance, activities[i], {activities[i]}, false, {}});
      }
      found.erase(stream);
      break;
    }
  }
}

void Matcher::find_accumulations() {
  const auto adds = [](const std::string& operation) { return operation == "add" || operation == "add.f32"; };
  const auto is_sum = [&](const Lost& l) { return adds(l.expected->operation) && l.pattern->pass != Pass::forward; };
  std::map<std::int64_t, std::vector<Lost>, std::greater<>> tables;
  for (const auto& lost : lost_) {
    if (is_sum(lost)) tables[lost.expected->kernel->key.dims.front()].push_back(lost);
  }
  std::map<std::int64_t, std::vector<std::uint32_t>> streams;
  for (std::uint32_t i = 0; i < trace_.activities.size(); ++i) {
    const Activity& a = trace_.activities[i];
    const auto& operations = meanings_[a.name].operations;
    if (!is_of_stream(i) && a.stream != beside_ && !operations.empty() && adds(operations.front()))
      streams[a.stream].push_back(i);
  }
  for (auto& [stream, found] : streams) {
    const auto ns = [&](std::uint32_t i) { return trace_.activities[i].duration; };
    std::sort(found.begin(), found.end(), [&](auto a, auto b) { return ns(a) > ns(b); });
    auto first = found.begin();
    for (auto table = tables.begin(); table != tables.end() && first != found.end(); table = tables.erase(table)) {
      const auto last = std::find_if(first, found.end(), [&](auto i) { return 3 * ns(i) < ns(*first); });
      std::sort(first, last);
      // Gradients of one table are summed in bf16, and that added to the main gradient.
      std::map<std::string, std::vector<std::uint32_t>> kernels;
      std::map<std::string, std::vector<const Lost*>> sums;
      for (auto i = first; i != last; ++i)
        kernels[meanings_[trace_.activities[*i].name].operations.front()].push_back(*i);
      for (const Lost& sum : table->second) sums[sum.expected->operation].push_back(&sum);
      const auto fits = [&](const auto& of) {
        const auto found_of = kernels.find(of.first);
        return found_of != kernels.end() && found_of->second.size() % of.second.size() == 0;
      };
      if (kernels.size() != sums.size() || !std::ranges::all_of(sums, fits)) break;
      for (const auto& [operation, wanted] : sums) {
        const auto& ran = kernels.at(operation);
        const std::size_t each = ran.size() / wanted.size();
        for (std::size_t k = 0; k < wanted.size(); ++k) {
          const std::uint32_t i = ran[(k + 1) * each - 1];
          result_.operations.push_back(
              {wanted[k]->expected, wanted[k]->pattern, wanted[k]->instance, i, {i}, false, {}});
        }
      }
      first = last;
      std::erase_if(lost_,
                    [&](const Lost& l) { return is_sum(l) && l.expected->kernel->key.dims.front() == table->first; });
    }
  }
  find_by_number();
  for (const auto& lost : lost_) {
    if (lost.expected->operation == "small") continue;
    ++result_.missing[lost.expected->kernel->name];
    result_.missing_copies += lost.expected->operation == "copy.strided";
  }
}

void Matcher::find_by_number() {
  constexpr std::size_t few = 20;  // one kernel in so many may belong to something else
  std::vector<bool> mapped(trace_.activities.size());
  for (const auto& o : result_.operations)
    for (const auto a : o.activities) mapped[a] = true;
  // Sums of small gradients are adds, too.
  const auto what = [](const Lost& l) -> std::string {
    const bool sum = l.expected->kernel->name.ends_with("gradient accumulation");
    return l.expected->operation == "small" ? sum ? "add.f32" : "" : l.expected->operation;
  };
  std::map<std::string, std::vector<std::size_t>> wanted;  // of lost_, by operation
  for (std::size_t i = 0; i < lost_.size(); ++i)
    if (const auto operation = what(lost_[i]); !operation.empty() && lost_[i].pattern->pass != Pass::forward)
      wanted[operation].push_back(i);
  std::map<std::pair<std::int64_t, std::string>, std::vector<std::uint32_t>> found;
  for (std::uint32_t i = 0; i < trace_.activities.size(); ++i) {
    const Activity& a = trace_.activities[i];
    const auto& operations = meanings_[a.name].operations;
    if (!mapped[i] && kinds_[i] == "comp" && !is_of_stream(i) && a.stream != beside_ && !operations.empty())
      found[{a.stream, operations.front()}].push_back(i);
  }
  std::vector<bool> placed(lost_.size());
  for (auto& [stream_and_operation, activities] : found) {
    const auto& operation = stream_and_operation.second;
    const auto of = wanted.find(operation);
    if (of == wanted.end()) continue;
    // Which is whose their sizes tell: a longer one has more elements.
    std::vector<std::pair<double, std::size_t>> launches;
    for (const auto i : of->second) {
      const auto& kernel = *lost_[i].expected->kernel;
      const int count = std::max(1, kernel.launches);
      const double bytes = profile::family(kernel.key.family).bytes(kernel.key.dims) / count;
      launches.insert(launches.end(), static_cast<std::size_t>(count), {bytes, i});
    }
    if (activities.size() < launches.size() || launches.size() + launches.size() / few < activities.size()) continue;
    std::stable_sort(launches.begin(), launches.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::stable_sort(activities.begin(), activities.end(),
                     [&](auto a, auto b) { return trace_.activities[a].duration > trace_.activities[b].duration; });
    std::map<std::size_t, std::vector<std::uint32_t>> taken;
    for (std::size_t n = 0; n < launches.size(); ++n) taken[launches[n].second].push_back(activities[n]);
    for (auto& [i, own] : taken) {
      std::sort(own.begin(), own.end());
      result_.operations.push_back(
          {lost_[i].expected, lost_[i].pattern, lost_[i].instance, own.back(), own, false, {}});
      placed[i] = true;
    }
  }
  std::size_t i = 0;
  std::erase_if(lost_, [&](const Lost&) { return placed[i++]; });
}

void Matcher::sort_exchanges() {
  for (std::size_t i = 1; i < result_.operations.size(); ++i) {
    Mapped &a = result_.operations[i - 1], &b = result_.operations[i];
    if (a.instance != b.instance || a.expected->operation != "all_to_all" || b.expected->operation != "all_to_all") {
      continue;
    }
    const auto bytes = [](const Mapped& m) { return m.expected->kernel->key.dims.back(); };
    const auto ns = [&](const Mapped& m) { return trace_.activities[m.main].duration; };
    if ((bytes(a) < bytes(b)) != (ns(a) < ns(b))) std::swap(a.expected, b.expected);
  }
}

void Matcher::collect_unmapped() {
  std::vector<bool> mapped(trace_.activities.size());
  for (const auto& o : result_.operations) {
    for (const auto a : o.activities) mapped[a] = true;
  }
  for (const auto a : result_.pipeline) mapped[a] = true;
  for (std::uint32_t i = 0; i < mapped.size(); ++i) {
    if (!mapped[i]) result_.unmapped.push_back(i);
  }
  name_first_unplaced();
}

void Matcher::name_first_unplaced() {
  const auto on_compute = [&](std::uint32_t i) {
    const Activity& a = trace_.activities[i];
    return a.stream == result_.compute_stream && a.engine == Engine::kernel;
  };
  std::uint32_t last = 0;  // behind the last operation comes what is no part of a step
  for (const auto& o : result_.operations)
    if (o.in_order) last = std::max(last, o.main);
  const Mapped* before = nullptr;
  auto next = result_.operations.begin();
  for (const auto i : result_.unmapped) {
    for (; next != result_.operations.end() && on_compute(next->main) && next->main < i; ++next) before = &*next;
    if (!on_compute(i) || before == nullptr || i > last) continue;
    result_.first_unplaced = trace_.names[trace_.activities[i].name] + ", after " + before->expected->kernel->name +
                             " of " + before->pattern->name;
    return;
  }
}

}  // namespace pipewright::traces
