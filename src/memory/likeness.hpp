// What the rest of a walk depends on, as numbers: equal where it would go on alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pipewright::memory {

constexpr std::uint32_t none = 0xffffffff;

/// Blocks are numbered in the order in which they are first named, so that their own numbers play no part.
class Likeness {
 public:
  explicit Likeness(std::size_t blocks) : numbers_(blocks) {}

  void add(std::int64_t word) { words_.push_back(word); }
  void name(std::uint32_t block) {
    if (block == none) return add(-1);
    auto& number = numbers_[block];
    if (number == 0) {
      named_.push_back(block);
      number = static_cast<std::uint32_t>(named_.size());
    }
    add(number);
  }
  /// Grows while it is read, where what is told of a block names another.
  const std::vector<std::uint32_t>& named() const { return named_; }
  bool names(std::uint32_t block) const { return numbers_[block] > 0; }
  std::vector<std::int64_t> words() && { return std::move(words_); }

 private:
  std::vector<std::int64_t> words_;
  std::vector<std::uint32_t> named_, numbers_;
};

}  // namespace pipewright::memory
