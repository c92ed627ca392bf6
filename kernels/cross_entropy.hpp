// Vocabulary-parallel cross entropy: the large kernels of Megatron Core's three forms. The kernels on one value a token
// (log, gather of the target) are left out; each takes about a microsecond. vocab is a multiple of 8.
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

/// Unfused (tensor_parallel/cross_entropy.py): cast to fp32, row maximum, subtract, exp, row sum, divide.
void cross_entropy_unfused_forward(const void* logits, float* work, float* exponentials, float* rows_out,
                                   std::int64_t tokens, std::int64_t vocab, Stream stream);
/// Multiply by the incoming gradient, cast to bf16.
void cross_entropy_unfused_backward(float* gradient, const float* row_gradient, void* logits_gradient,
                                    std::int64_t tokens, std::int64_t vocab, Stream stream);
/// Fused by torch.compile (fusions/fused_cross_entropy.py): cast + maximum; subtract + exp + sum into a copy, which is
/// written back; divide. 30 bytes a logit.
void cross_entropy_native_forward(const void* logits, float* work, float* copy, float* rows_out, std::int64_t tokens,
                                  std::int64_t vocab, Stream stream);
/// calculate_gradients changes its softmax: a copy (work), then the scaled gradient in bf16 and the softmax written
/// back; 18 bytes a logit.
void cross_entropy_native_backward(float* softmax, float* work, const float* row_gradient, void* logits_gradient,
                                   std::int64_t tokens, std::int64_t vocab, Stream stream);

}  // namespace pipewright::kernels
