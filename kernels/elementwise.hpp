// Memory-bound kernels of a transformer layer. Each moves memory the way the training stack's kernel does: 16-byte
// accesses where that one is vectorised, one element an access where it is not (the time is that of the real op).
#pragma once

#include "stream.hpp"

namespace pipewright::kernels {

enum class Activation { gelu, squared_relu };

void rope(bool backward, const void* in, const float* angles, void* out, std::int64_t tokens, std::int64_t heads,
          std::int64_t head_dim, Stream stream);
/// Rows of `cols` contiguous elements, `stride` apart, into a contiguous tensor.
void copy_strided(const void* in, void* out, std::int64_t rows, std::int64_t cols, std::int64_t stride, Stream stream);
/// Rows of three inputs (widths cols[0..2]) side by side.
void cat(const void* const in[3], const std::int64_t cols[3], void* out, std::int64_t rows, Stream stream);
void swiglu_forward(const void* in, void* out, std::int64_t rows, std::int64_t ffn, Stream stream);
void swiglu_backward(const void* in, const void* dy, void* dx, std::int64_t rows, std::int64_t ffn, Stream stream);
void activation_forward(Activation kind, const void* in, void* out, std::int64_t elements, Stream stream);
void activation_backward(Activation kind, const void* in, const void* dy, void* dx, std::int64_t elements,
                         Stream stream);
void dropout_forward(const void* in, void* out, unsigned char* mask, std::int64_t elements, Stream stream);
void dropout_backward(const void* dy, const unsigned char* mask, void* dx, std::int64_t elements, Stream stream);
void add(const void* a, const void* b, void* out, std::int64_t elements, Stream stream);
/// main += gradient, fp32 += bf16, in place.
void add_f32(float* main, const void* gradient, std::int64_t elements, Stream stream);
void cast_bf16_f32(const void* in, float* out, std::int64_t elements, Stream stream);
void cast_f32_bf16(const float* in, void* out, std::int64_t elements, Stream stream);
void fill(void* out, std::int64_t bytes, Stream stream);

}  // namespace pipewright::kernels
