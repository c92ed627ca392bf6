// Memory-bound families: own kernels (kernels/*.cu) and the runtime's copies. Inputs are cold, except where a training
// step's kernel just before has written or read them and they are small: gradients (norms, SwiGLU, cat), amax, casts.
#include <unordered_map>

#include "block_scales.hpp"
#include "kernels/block_scaled.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/embedding_kernels.hpp"
#include "kernels/fp8.hpp"
#include "kernels/instruments.hpp"
#include "kernels/norm_kernels.hpp"
#include "kernels/optimizer.hpp"
#include "setup.hpp"

namespace pipewright::capture {
namespace {

using namespace kernels;

Factory norm(bool layer, bool backward) {
  return [=](Setup& s, const Dims& d) -> Launch {
    const auto rows = d.at(0), cols = d.at(1);
    const auto x = s.bf16(rows * cols), gamma = s.bf16(cols), y = s.out(rows * cols * 2);
    const auto statistics = s.f32(2 * rows);
    if (!backward) {
      return [=, stream = s.stream()](int i) {
        norm_forward(layer, x.at(i), gamma.at(i), y.at(i), statistics.at<float>(i), rows, cols, stream);
      };
    }
    const auto dy = s.bf16(rows * cols);
    s.just_written(dy, rows * cols);
    const auto multiprocessors = static_cast<int>(s.lab.gpu.multiprocessors);
    const auto partials = s.out(norm_partial_rows(multiprocessors) * cols * 4), dgamma = s.out(cols * 4);
    return [=, stream = s.stream()](int i) {
      norm_backward(layer, x.at(i), dy.at(i), gamma.at(i), statistics.at<float>(i), y.at(i), partials.at<float>(i),
                    dgamma.at(i), rows, cols, multiprocessors, stream);
    };
  };
}

Factory rope_of(bool backward) {
  return [=](Setup& s, const Dims& d) -> Launch {
    const auto n = d.at(0) * d.at(1) * d.at(2);
    const auto x = s.bf16(n), y = s.out(n * 2), angles = s.f32(d.at(0) * d.at(2));
    return [=, stream = s.stream()](int i) {
      rope(backward, x.at(i), angles.at<float>(i), y.at(i), d.at(0), d.at(1), d.at(2), stream);
    };
  };
}

Factory activation(Activation kind, bool backward) {
  return [=](Setup& s, const Dims& d) -> Launch {
    const auto n = d.at(0) * d.at(1);
    const auto x = s.bf16(n), y = s.out(n * 2);
    if (!backward) {
      return [=, stream = s.stream()](int i) { activation_forward(kind, x.at(i), y.at(i), n, stream); };
    }
    const auto dy = s.bf16(n);
    return [=, stream = s.stream()](int i) { activation_backward(kind, x.at(i), dy.at(i), y.at(i), n, stream); };
  };
}

Launch swiglu(Setup& s, const Dims& d, bool backward) {
  const auto rows = d.at(0), ffn = d.at(1);
  const auto x = s.bf16(rows * 2 * ffn), y = s.out(rows * ffn * (backward ? 4 : 2));
  if (!backward) return [=, stream = s.stream()](int i) { swiglu_forward(x.at(i), y.at(i), rows, ffn, stream); };
  const auto dy = s.bf16(rows * ffn);
  s.just_written(dy, rows * ffn);
  return [=, stream = s.stream()](int i) { swiglu_backward(x.at(i), dy.at(i), y.at(i), rows, ffn, stream); };
}

Launch dropout(Setup& s, const Dims& d, bool backward) {
  const auto n = d.at(0);
  const auto x = s.bf16(n), y = s.out(n * 2), mask = s.out(n);
  return [=, stream = s.stream()](int i) {
    if (backward)
      dropout_backward(x.at(i), mask.at<unsigned char>(i), y.at(i), n, stream);
    else
      dropout_forward(x.at(i), y.at(i), mask.at<unsigned char>(i), n, stream);
  };
}

/// rows of three inputs, 4 : 1 : 1 (q, k and v of four query heads a group)
Launch cat_of(Setup& s, const Dims& d) {
  const auto rows = d.at(0), part = d.at(1) / 6 / 8 * 8;
  const std::int64_t cols[3] = {d.at(1) - 2 * part, part, part};
  const auto q = s.bf16(rows * cols[0]), k = s.bf16(rows * part), v = s.bf16(rows * part),
             y = s.out(rows * d.at(1) * 2);
  s.just_written(q, rows * cols[0]);
  return [=, stream = s.stream()](int i) {
    const void* in[3] = {q.at(i), k.at(i), v.at(i)};
    cat(in, cols, y.at(i), rows, stream);
  };
}

Launch copy_from_strided(Setup& s, const Dims& d) {
  const auto rows = d.at(0), cols = d.at(1), stride = cols + 256;  // beside a key and a value of 128 each
  const auto x = s.bf16(rows * stride), y = s.out(rows * cols * 2);
  return [=, stream = s.stream()](int i) { copy_strided(x.at(i), y.at(i), rows, cols, stride, stream); };
}

Launch copy(Setup& s, std::int64_t bytes, cudaMemcpyKind kind) {
  const auto device = s.take(Content::bf16, bytes / 2, kind == cudaMemcpyHostToDevice), other = s.out(bytes);
  if (kind == cudaMemcpyDeviceToDevice) {
    return [=, stream = s.stream()](int i) {
      check(cudaMemcpyAsync(other.at(i), device.at(i), static_cast<std::size_t>(bytes), kind, stream), "copy");
    };
  }
  if (!s.fits()) return {};
  void* raw = nullptr;
  check(cudaMallocHost(&raw, static_cast<std::size_t>(bytes)), "pinned memory");
  const std::shared_ptr<void> host(raw, [](void* p) { cudaFreeHost(p); });
  return [=, stream = s.stream()](int i) {
    void* to = kind == cudaMemcpyDeviceToHost ? host.get() : device.at(i);
    const void* from = kind == cudaMemcpyDeviceToHost ? device.at(i) : host.get();
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream), "copy");
  };
}

Launch amax_of(Setup& s, const Dims& d) {
  const auto n = d.at(0);
  const auto x = s.bf16(n), scale_at = s.f32(2);
  s.just_written(x, n);
  return [=, stream = s.stream()](int i) { amax(x.at(i), scale_at.at<float>(i), n, stream); };
}

/// The input is in the L2 cache: by turns read by the amax reduction, and written by a norm that found the amax.
Launch cast_to_fp8(Setup& s, std::int64_t n, const std::function<void(const void*, const float*, void*, void*)>& cast) {
  const auto x = s.take(Content::bf16, n, true), source = s.bf16(n), scale_at = s.f32(2), y = s.out(n), t = s.out(n);
  s.before = [=, stream = s.stream()](int i) {
    amax_only(x.at(i), scale_at.at<float>(i), n, stream);
    if (i % 2 == 0) return;
    check(cudaMemcpyAsync(x.at(i), source.at(i), static_cast<std::size_t>(n * 2), cudaMemcpyDeviceToDevice, stream),
          "copy");
  };
  return [=](int i) { cast(x.at(i), scale_at.at<float>(i), y.at(i), t.at(i)); };
}

/// Tiles of the kernels with a transposed output (kernels/fp8.cu).
constexpr std::int64_t tile_rows = 64, tile_cols = 128;

Launch cast_transpose(Setup& s, const Dims& d) {
  s.needs(d[0] % tile_rows == 0 && d[1] % tile_cols == 0);
  return cast_to_fp8(s, d[0] * d[1],
                     [=, stream = s.stream()](const void* x, const float* scale_at, void* y, void* transposed) {
                       cast_transpose_fp8(x, scale_at, y, transposed, d[0], d[1], stream);
                     });
}

/// Rows that fill no whole tiles are cast by another kernel, as in Transformer Engine.
Launch cast_transpose_any(Setup& s, const Dims& d) {
  const auto rows = d.at(0), cols = d.at(1);
  return cast_to_fp8(s, rows * cols,
                     [=, stream = s.stream()](const void* x, const float* scale_at, void* y, void* transposed) {
                       cast_transpose_any_fp8(x, scale_at, y, transposed, rows, cols, stream);
                     });
}

Launch quantize_blockwise(Setup& s, const Dims& d) {
  s.needs(d.at(0) % 128 == 0 && d.at(1) % 128 == 0);
  const auto rows = d.at(0), cols = d.at(1), n = rows * cols;
  const auto x = s.bf16(n), y = s.out(n), t = s.out(n), a = s.f32(n / 128), b = s.f32(n / 128);
  return [=, stream = s.stream()](int i) {
    quantize_blockwise_fp8(x.at(i), y.at(i), a.at<float>(i), t.at(i), b.at<float>(i), rows, cols, stream);
  };
}

Launch quantize_mx(Setup& s, const Dims& d) {
  const auto rows = d.at(0), cols = d.at(1), n = rows * cols;
  const auto x = s.bf16(n), y = s.out(n), z = s.out(n), a = s.out(n / mxfp8.elements), b = s.out(n / mxfp8.elements);
  return [=, stream = s.stream()](int i) {
    quantize_mxfp8(x.at(i), y.at(i), a.at(i), z.at(i), b.at(i), rows, cols, stream);
  };
}

Launch quantize_nv(Setup& s, const Dims& d) {
  const auto rows = d.at(0), cols = d.at(1), n = rows * cols;
  const auto x = s.bf16(n), y = s.out(n / 2), z = s.out(n / 2), a = s.out(n / nvfp4.elements),
             b = s.out(n / nvfp4.elements), most = s.f32(2);
  return [=, stream = s.stream()](int i) {
    amax(x.at(i), most.at<float>(i), n, stream);
    quantize_nvfp4(x.at(i), most.at<float>(i), y.at(i), a.at(i), z.at(i), b.at(i), rows, cols, stream);
  };
}

Launch embedding(Setup& s, const Dims& d, bool backward) {
  const auto tokens = d.at(0), hidden = d.at(1);
  const auto vocab = backward ? d.at(2) : std::int64_t{32000};
  const auto ids = s.out(tokens * 8), gradient = s.bf16(tokens * hidden);
  if (s.fits()) random_tokens(ids.at<std::int64_t>(0), tokens, vocab, s.stream());
  if (!backward) {
    const auto table = s.bf16(vocab * hidden), y = s.out(tokens * hidden * 2);
    return [=, stream = s.stream()](int i) {
      embedding_forward(ids.at<std::int64_t>(0), table.at(i), y.at(i), tokens, hidden, stream);
    };
  }
  const auto workspace = s.out(static_cast<std::int64_t>(embedding_backward_workspace(tokens, hidden)));
  const auto table_gradient = s.out(vocab * hidden * 2);
  return [=, stream = s.stream()](int i) {
    embedding_backward(ids.at<std::int64_t>(0), gradient.at(i), table_gradient.at(i), workspace.at(i), tokens, hidden,
                       vocab, stream);
  };
}

Launch cross_entropy(Setup& s, const Dims& d, const std::string& form) {
  const auto tokens = d.at(0), vocab = d.at(1), n = tokens * vocab;
  const auto rows = s.f32(2 * tokens);
  const auto stream = s.stream();
  const auto work = s.f32(n);
  if (form == "native.forward") {
    const auto x = s.bf16(n), copy = s.f32(n);
    return [=](int i) {
      cross_entropy_native_forward(x.at(i), work.at<float>(i), copy.at<float>(i), rows.at<float>(i), tokens, vocab,
                                   stream);
    };
  }
  if (form == "unfused.forward") {
    const auto x = s.bf16(n), e = s.f32(n);
    return [=](int i) {
      cross_entropy_unfused_forward(x.at(i), work.at<float>(i), e.at<float>(i), rows.at<float>(i), tokens, vocab,
                                    stream);
    };
  }
  const auto y = s.out(n * 2);
  if (form == "native.backward") {
    const auto copy = s.f32(n);
    return [=](int i) {
      cross_entropy_native_backward(work.at<float>(i), copy.at<float>(i), rows.at<float>(i), y.at(i), tokens, vocab,
                                    stream);
    };
  }
  return [=](int i) {
    cross_entropy_unfused_backward(work.at<float>(i), rows.at<float>(i), y.at(i), tokens, vocab, stream);
  };
}

const std::unordered_map<std::string, Factory>& factories() {
  static const std::unordered_map<std::string, Factory> table = [] {
    std::unordered_map<std::string, Factory> t;
    t["rmsnorm.forward"] = norm(false, false);
    t["rmsnorm.backward"] = norm(false, true);
    t["layernorm.forward"] = norm(true, false);
    t["layernorm.backward"] = norm(true, true);
    t["rope.forward"] = rope_of(false);
    t["rope.backward"] = rope_of(true);
    t["copy.strided"] = copy_from_strided;
    t["cat"] = cat_of;
    t["swiglu.forward"] = [](Setup& s, const Dims& d) { return swiglu(s, d, false); };
    t["swiglu.backward"] = [](Setup& s, const Dims& d) { return swiglu(s, d, true); };
    t["gelu.forward"] = activation(Activation::gelu, false);
    t["gelu.backward"] = activation(Activation::gelu, true);
    t["squared_relu.forward"] = activation(Activation::squared_relu, false);
    t["squared_relu.backward"] = activation(Activation::squared_relu, true);
    t["dropout.forward"] = [](Setup& s, const Dims& d) { return dropout(s, d, false); };
    t["dropout.backward"] = [](Setup& s, const Dims& d) { return dropout(s, d, true); };
    t["add"] = [](Setup& s, const Dims& d) -> Launch {
      const auto a = s.bf16(d[0]), b = s.bf16(d[0]), c = s.out(d[0] * 2);
      return [=, stream = s.stream()](int i) { add(a.at(i), b.at(i), c.at(i), d[0], stream); };
    };
    t["add.f32"] = [](Setup& s, const Dims& d) -> Launch {
      const auto main = s.f32(d[0]), gradient = s.bf16(d[0]);
      return [=, stream = s.stream()](int i) { add_f32(main.at<float>(i), gradient.at(i), d[0], stream); };
    };
    t["cast.bf16_f32"] = [](Setup& s, const Dims& d) -> Launch {
      const auto x = s.bf16(d[0]), y = s.f32(d[0]);
      return [=, stream = s.stream()](int i) { cast_bf16_f32(x.at(i), y.at<float>(i), d[0], stream); };
    };
    t["cast.f32_bf16"] = [](Setup& s, const Dims& d) -> Launch {
      const auto x = s.f32(d[0]), y = s.out(d[0] * 2);
      return [=, stream = s.stream()](int i) { cast_f32_bf16(x.at<float>(i), y.at(i), d[0], stream); };
    };
    t["fill"] = [](Setup& s, const Dims& d) -> Launch {
      const auto y = s.out(d[0]);
      return [=, stream = s.stream()](int i) { fill(y.at(i), d[0], stream); };
    };
    t["memset"] = [](Setup& s, const Dims& d) -> Launch {
      const auto y = s.out(d[0]);
      return [=, stream = s.stream()](int i) {
        check(cudaMemsetAsync(y.at(i), 0, static_cast<std::size_t>(d[0]), stream), "memset");
      };
    };
    t["copy.d2d"] = [](Setup& s, const Dims& d) { return copy(s, d[0], cudaMemcpyDeviceToDevice); };
    t["copy.d2h"] = [](Setup& s, const Dims& d) { return copy(s, d[0], cudaMemcpyDeviceToHost); };
    t["copy.h2d"] = [](Setup& s, const Dims& d) { return copy(s, d[0], cudaMemcpyHostToDevice); };
    t["amax"] = amax_of;
    t["cast.fp8"] = [](Setup& s, const Dims& d) {
      return cast_to_fp8(s, d[0],
                         [n = d[0], stream = s.stream()](const void* x, const float* scale_at, void* y, void*) {
                           cast_fp8(x, scale_at, y, n, stream);
                         });
    };
    t["cast_transpose.fp8"] = cast_transpose;
    t["cast_transpose.fp8.general"] = cast_transpose_any;
    t["transpose.fp8"] = [](Setup& s, const Dims& d) -> Launch {
      s.needs(d[0] % tile_rows == 0 && d[1] % tile_cols == 0);
      const auto x = s.take(Content::e4m3, d[0] * d[1]), y = s.out(d[0] * d[1]);
      return [=, stream = s.stream()](int i) { transpose_fp8(x.at(i), y.at(i), d[0], d[1], stream); };
    };
    t["quantize.blockwise.fp8"] = quantize_blockwise;
    t["quantize.mxfp8"] = quantize_mx;
    t["quantize.nvfp4"] = quantize_nv;
    t["embedding.forward"] = [](Setup& s, const Dims& d) { return embedding(s, d, false); };
    t["embedding.backward"] = [](Setup& s, const Dims& d) { return embedding(s, d, true); };
    for (const char* form : {"unfused.forward", "unfused.backward", "native.forward", "native.backward"}) {
      t[std::string("cross_entropy.") + form] = [form](Setup& s, const Dims& d) { return cross_entropy(s, d, form); };
    }
    t["l2norm"] = [](Setup& s, const Dims& d) -> Launch {
      const auto x = s.f32(d[0]), partial = s.f32(321);
      return [=, stream = s.stream()](int i) { l2norm(x.at<float>(i), partial.at<float>(0), d[0], stream); };
    };
    t["scale"] = [](Setup& s, const Dims& d) -> Launch {
      const auto x = s.f32(d[0]);
      return [=, stream = s.stream()](int i) { scale(x.at<float>(i), x.at<float>(i), 0.999f, d[0], stream); };
    };
    t["adam"] = [](Setup& s, const Dims& d) -> Launch {
      const auto g = s.f32(d[0]), p = s.f32(d[0]), m = s.f32(d[0]), v = s.f32(d[0]);
      return [=, stream = s.stream()](int i) {
        adam(g.at<float>(i), p.at<float>(i), m.at<float>(i), v.at<float>(i), d[0], stream);
      };
    };
    t["small"] = [](Setup& s, const Dims&) -> Launch {
      const auto y = s.out(4096);
      return [=, stream = s.stream()](int i) { fill(y.at(i), 4096, stream); };
    };
    return t;
  }();
  return table;
}

}  // namespace

std::optional<Op> memory_op(Lab& lab, const profile::Key& key) {
  const auto factory = factories().find(key.family);
  if (factory == factories().end()) return std::nullopt;
  return set_up(lab, factory->second, key.dims);
}

}  // namespace pipewright::capture
