// LanguageModelEmbedding as part of a piece: at the model's start, and before every depth of multi-token prediction.
#pragma once

#include <optional>

#include "builder.hpp"

namespace pipewright::model {

class EmbeddingWriter {
 public:
  EmbeddingWriter(PieceBuilder& builder, const Dimensions& dimensions, const scenario::Scenario& scenario)
      : w_(builder),
        d_(dimensions),
        learned_(scenario.model.position_embedding_type == "learned_absolute"),
        positions_(scenario.model.max_position_embeddings.value_or(scenario.model.seq_length)) {}

  /// `out`, not yet allocated: [L,h] with sequence parallelism, else [S,h].
  void forward(std::uint32_t out, bool grad = true);
  /// Frees what forward left, and `gradient`. `others`: gradients of the same table that autograd has by then, which it
  /// sums in bf16 before the hook adds the sum to the main gradient; nullopt: more come, this one waits for them.
  void backward(std::uint32_t gradient, std::optional<Int> others);

 private:
  void lookup_backward(const std::string& name, std::uint32_t gradient, Int rows, std::optional<Int> others);
  std::uint32_t last(bool is_last, std::uint32_t out, Int bytes);

  PieceBuilder& w_;
  const Dimensions& d_;
  const bool learned_;
  const Int positions_;
  std::uint32_t ids_ = no_tensor, mask_ = no_tensor;
};

}  // namespace pipewright::model
