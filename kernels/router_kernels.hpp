// The top-k router of a mixture-of-experts layer as PyTorch runs it: some 35 small kernels in a row over the scores of
// tokens x experts, most bound by their launch and their latency.
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

/// Scores, fp32 and integer scratch of tokens x experts each, of 8 bytes an element.
struct RouterBuffers {
  const float* logits = nullptr;
  float *scores = nullptr, *work = nullptr, *sums = nullptr;
  std::int64_t *indices = nullptr, *map = nullptr;
};

void router_topk_forward(const RouterBuffers& b, std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                         Stream stream);
void router_topk_backward(const RouterBuffers& b, std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                          Stream stream);

}  // namespace pipewright::kernels
