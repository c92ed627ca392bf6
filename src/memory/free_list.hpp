// Free blocks in the allocator's order: stream, size, address.
//
//   keys_    [ last of leaf 3 | last of leaf 0 | last of leaf 5 | ... ]   one array: a search touches few lines of it
//   order_   [       3        |       0        |       5        | ... ]
//   leaves_  fixed arrays of up to 64 entries, 1.5 KiB: what an insertion moves stays in a few lines, too
//
// A hundred thousand holes are two thousand leaves; a new leaf, every 32 insertions at most, moves 28 B for each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipewright::memory {

class FreeList {
 public:
  struct Entry {
    std::int64_t size = 0, address = 0;
    std::int32_t stream = 0;
    std::uint32_t block = 0;
    /// A search mostly stays within a stream; there it does not jump, for half of its jumps would go the other way.
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.stream == b.stream ? a.place() < b.place() : a.stream < b.stream;
    }

   private:
    __extension__ using Wide = unsigned __int128;
    Wide place() const {
      return static_cast<Wide>(static_cast<std::uint64_t>(size)) << 64 | static_cast<std::uint64_t>(address);
    }
  };

  /// A place between entries; any change of the list invalidates it.
  class Place {
   public:
    Place(const FreeList* list, std::size_t leaf, std::size_t at) : list_(list), leaf_(leaf), at_(at) {}
    const Entry& operator*() const { return list_->leaf(leaf_).entries[at_]; }
    const Entry* operator->() const { return &**this; }
    Place& operator++() {
      if (++at_ == list_->leaf(leaf_).count) ++leaf_, at_ = 0;
      return *this;
    }
    Place& operator--() {
      if (at_ == 0) at_ = list_->leaf(--leaf_).count;
      --at_;
      return *this;
    }
    friend bool operator==(const Place&, const Place&) = default;

   private:
    friend class FreeList;
    const FreeList* list_;
    std::size_t leaf_, at_;
  };

  Place begin() const { return {this, 0, 0}; }
  Place end() const { return {this, order_.size(), 0}; }
  /// The first entry of the stream that is at least as large, or what follows the stream's last.
  Place lower_bound(std::int32_t stream, std::int64_t size) const {
    // No address is less than 0: those of one size need not be looked at.
    const auto smaller = [=](const Entry& entry) {
      return entry.stream == stream ? entry.size < size : entry.stream < stream;
    };
    const std::size_t i = first_not(keys_.data(), keys_.size(), smaller);
    return i == order_.size() ? end() : Place(this, i, first_not(leaf(i).entries.data(), leaf(i).count, smaller));
  }

  void insert(const Entry& entry) {
    if (order_.empty()) add_leaf(0);
    std::size_t i = std::min(leaf_of(entry), order_.size() - 1);
    if (leaf(i).count == capacity) {
      divide(i);
      if (keys_[i] < entry) ++i;
    }
    Leaf& into = leaf(i);
    const std::size_t at = place_in(into, entry);
    std::copy_backward(into.begin() + at, into.end(), into.end() + 1);
    into.entries[at] = entry;
    ++into.count;
    keys_[i] = into.entries[into.count - 1];
  }
  /// An entry that is in the list.
  void erase(const Entry& entry) {
    const std::size_t i = leaf_of(entry);
    erase(i, place_in(leaf(i), entry));
  }
  void erase(const Place& place) { erase(place.leaf_, place.at_); }
  /// The same as to erase the one and to insert the other, which mostly belongs near to it.
  void replace(const Place& place, const Entry& entry) {
    const std::size_t i = place.leaf_, from = place.at_;
    Leaf& leaf = this->leaf(i);
    const bool here = (i == 0 || keys_[i - 1] < entry) && (i + 1 == order_.size() || entry < keys_[i]);
    if (!here) {
      erase(i, from);
      return insert(entry);
    }
    std::size_t to = from;
    if (entry < leaf.entries[from]) {
      for (; to > 0 && entry < leaf.entries[to - 1]; --to) leaf.entries[to] = leaf.entries[to - 1];
    } else {
      for (; to + 1 < leaf.count && leaf.entries[to + 1] < entry; ++to) leaf.entries[to] = leaf.entries[to + 1];
    }
    leaf.entries[to] = entry;
    keys_[i] = leaf.entries[leaf.count - 1];
  }
  void replace(const Entry& old, const Entry& entry) {
    const std::size_t i = leaf_of(old);
    replace(Place(this, i, place_in(leaf(i), old)), entry);
  }

 private:
  void erase(std::size_t i, std::size_t at) {
    Leaf& from = leaf(i);
    std::copy(from.begin() + at + 1, from.end(), from.begin() + at);
    if (--from.count > 0) {
      keys_[i] = from.entries[from.count - 1];
      return;
    }
    spare_.push_back(order_[i]);
    keys_.erase(keys_.begin() + static_cast<std::ptrdiff_t>(i));
    order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  static constexpr std::size_t capacity = 64;
  struct Leaf {
    std::array<Entry, capacity> entries;
    std::size_t count = 0;
    Entry* begin() { return entries.data(); }
    Entry* end() { return entries.data() + count; }
  };

  Leaf& leaf(std::size_t i) { return leaves_[order_[i]]; }
  const Leaf& leaf(std::size_t i) const { return leaves_[order_[i]]; }

  /// The first leaf that ends at or after the entry.
  std::size_t leaf_of(const Entry& entry) const {
    return first_not(keys_.data(), keys_.size(), [&](const Entry& one) { return one < entry; });
  }
  /// Of sorted entries, the first that is not `before` what is searched.
  template <class Before>
  static std::size_t first_not(const Entry* entries, std::size_t count, const Before& before) {
    const Entry* first = entries;
    while (count > 0) {
      const std::size_t half = (count + 1) / 2;
      first += half & -static_cast<std::size_t>(before(first[half - 1]));
      count -= half;
    }
    return static_cast<std::size_t>(first - entries);
  }
  static std::size_t place_in(const Leaf& leaf, const Entry& entry) {
    return first_not(leaf.entries.data(), leaf.count, [&](const Entry& one) { return one < entry; });
  }
  void add_leaf(std::size_t i) {
    std::uint32_t id = static_cast<std::uint32_t>(leaves_.size());
    if (spare_.empty()) {
      leaves_.emplace_back();
    } else {
      id = spare_.back();
      spare_.pop_back();
    }
    keys_.insert(keys_.begin() + static_cast<std::ptrdiff_t>(i), Entry{});
    order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(i), id);
  }
  void divide(std::size_t i) {
    add_leaf(i + 1);
    Leaf &full = leaf(i), &rest = leaf(i + 1);
    std::copy(full.begin() + capacity / 2, full.end(), rest.begin());
    rest.count = capacity - capacity / 2;
    full.count = capacity / 2;
    keys_[i] = full.entries[full.count - 1];
    keys_[i + 1] = rest.entries[rest.count - 1];
  }

  std::vector<Leaf> leaves_;          ///< in the order in which they were made
  std::vector<std::uint32_t> order_;  ///< indices of leaves, none of them empty, by what they hold
  std::vector<Entry> keys_;           ///< the last entry of each, in the same order
  std::vector<std::uint32_t> spare_;  ///< leaves that hold nothing
};

}  // namespace pipewright::memory
