// Replay of Megatron's paged stash over a rank's hooks.
#pragma once

#include <cstddef>
#include <vector>

#include "hooks.hpp"

namespace pipewright::offload {

/// The rows that live in one kind of pages, and the most at once.
struct PageUse {
  model::OffloadGroup::Pages kind;  ///< its rows are not read
  std::int64_t expected = 0, rows = 0, most_expected = 0, most_rows = 0;
};

/// PagedStashManager (core_r0.19.0 transformer/moe/paged_stash.py; lines below). Experts' tensors of a layer:
///
///   first step   saved without the rows that are no tokens, padded again when their backward needs them; the order of
///                layers is learned, and how many rows live at once
///   later        forward   the next layer's experts wait for the copy into pages, and let go of the tensors
///                backward  waits for the copy back; when it is done the next layer's begins, if its backward is next
///
/// Both copies use one stream. A layer whose own backward comes next is not copied.
class PagedStash : public Manager {
 public:
  explicit PagedStash(Recorder& recorder) : recorder_(recorder) {}

  void begin_forward(int, int) override {}
  void hook(model::Step::Kind kind, std::uint32_t unit) override;
  void end_backward(int, int) override {}
  void end_iteration() override;
  bool learns_from(model::Step::Kind /*kind*/) const override { return true; }

  const std::vector<PageUse>& use() const { return use_; }

 private:
  struct Turn {
    std::uint32_t unit;
    bool backward;
  };
  void commit_forward(std::uint32_t unit);
  void commit_backward(std::uint32_t unit);
  void wait_for_stash();
  void reload(std::uint32_t unit);
  void count(std::uint32_t unit, std::int64_t sign);

  Recorder& recorder_;
  bool learning_ = true;
  std::vector<Turn> order_;  ///< _pp_schedule
  std::size_t next_ = 0;     ///< current_schedule_index
  std::vector<std::uint32_t> stashing_, reloading_;
  std::vector<PageUse> use_;
};

}  // namespace pipewright::offload
