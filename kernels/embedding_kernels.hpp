// Embedding lookup and its gradient as PyTorch computes it: tokens sorted, equal ones summed in segments of at most
// ten, segments summed into rows of a zeroed vocab x hidden gradient.
#pragma once

#include <cstddef>

#include "stream.hpp"

namespace pipewright::kernels {

void random_tokens(std::int64_t* tokens, std::int64_t count, std::int64_t vocab, Stream stream);
void embedding_forward(const std::int64_t* tokens, const void* table, void* out, std::int64_t count,
                       std::int64_t hidden, Stream stream);

/// Device memory that embedding_backward works in.
std::size_t embedding_backward_workspace(std::int64_t count, std::int64_t hidden);
void embedding_backward(const std::int64_t* tokens, const void* gradient, void* table_gradient, void* workspace,
                        std::int64_t count, std::int64_t hidden, std::int64_t vocab, Stream stream);

}  // namespace pipewright::kernels
