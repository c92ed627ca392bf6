// Writes an optimizer's update line by line, as the host makes and drops its tensors.
#pragma once

#include <string_view>
#include <utility>

#include "builder.hpp"

namespace pipewright::model {

class UpdateBuilder {
 public:
  UpdateBuilder(Owners& owners, Rank& rank) : owners_(owners), rank_(rank) {}

  /// Of the optimizer's state; nothing of zero bytes.
  void make(std::string_view owner, Int bytes, Stream stream = Stream::compute) {
    if (bytes == 0) return;
    add(UpdateStep::Kind::make, rank_.optimizer_state.size());
    rank_.optimizer_state.push_back(Tensor{owners_(owner), Bytes(bytes), stream});
  }
  std::uint32_t allocate(std::string_view owner, Int bytes) {
    return allocate(UpdateStep::Kind::allocate, owner, bytes);
  }
  /// In the first update only.
  std::uint32_t allocate_first(std::string_view owner, Int bytes) {
    return allocate(UpdateStep::Kind::allocate_first, owner, bytes);
  }
  /// What was allocated is named no more; nothing for no_tensor.
  template <typename... Ids>
  void release(Ids&... ids) {
    (free(std::exchange(ids, no_tensor)), ...);
  }

 private:
  void add(UpdateStep::Kind kind, std::size_t index) {
    rank_.update.push_back({kind, static_cast<std::uint32_t>(index)});
  }
  std::uint32_t allocate(UpdateStep::Kind kind, std::string_view owner, Int bytes) {
    add(kind, rank_.in_update.size());
    rank_.in_update.push_back(Tensor{owners_(owner), Bytes(bytes)});
    return static_cast<std::uint32_t>(rank_.in_update.size() - 1);
  }
  void free(std::uint32_t tensor) {
    if (tensor != no_tensor) add(UpdateStep::Kind::free, tensor);
  }

  Owners& owners_;
  Rank& rank_;
};

}  // namespace pipewright::model
